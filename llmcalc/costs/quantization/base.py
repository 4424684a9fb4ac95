"""The bytes that a quantization scheme stores for each tensor, summed over a model.

Sizes are those of the tensors in a checkpoint of the scheme; its header and metadata are not counted. Layers are
counted one by one, since a scheme may treat them differently. Each expert of a stacked tensor is one matrix.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import reduce
from itertools import chain

from ...algebra import Number, add, is_zero, times
from ...errors import InputError
from ...flow.module_names import ModuleNames
from ...flow.tree import Node, NodePosition
from ...frozen import frozen
from ...model import ModelSpec
from ...ops import ParamTensor
from ...optional import MTP, TOWERS
from ..trained_tensors import packed_bytes

UNCOUNTED_SCHEME_ADVICE = "--quantize none counts without it"
"""The advice in an error about a config's quantization scheme that is not supported."""

MAX_LAYERS = 1000
"""Largest number of layers of a stack that is supported, since tensors are counted layer by layer."""


@frozen(slots=True)
class StoredBytes:
    """Bytes of stored tensors by purpose: codes, scales, zero points and others.

    weights: codes of the converted weights.
    scales: scales of the weights, with scales of scales.
    zeros: zero points or minima.
    other: group indices, code books, stored shapes, scales of activations.
    unconverted: all tensors that keep a plain number format.
    """

    weights: Number = 0
    scales: Number = 0
    zeros: Number = 0
    other: Number = 0
    unconverted: Number = 0

    def __add__(self, other_parts: StoredBytes) -> StoredBytes:
        return StoredBytes(
            add(self.weights, other_parts.weights),
            add(self.scales, other_parts.scales),
            add(self.zeros, other_parts.zeros),
            add(self.other, other_parts.other),
            add(self.unconverted, other_parts.unconverted),
        )

    def __mul__(self, copy_count: Number) -> StoredBytes:
        if type(copy_count) is int:
            if copy_count == 1:  # of nearly every tensor
                return self
            return StoredBytes(
                self.weights * copy_count, self.scales * copy_count, self.zeros * copy_count, self.other * copy_count,
                self.unconverted * copy_count,
            )  # fmt: skip
        return StoredBytes(
            *(
                part_bytes if is_zero(part_bytes) else times(part_bytes, copy_count)
                for part_bytes in (getattr(self, part_name) for part_name in BYTE_PURPOSES)
            )
        )

    @property
    def total(self) -> Number:
        return reduce(add, self.data().values(), 0)

    def data(self) -> dict[str, Number]:
        """The bytes by field name, including fields whose bytes are 0."""
        return {part_name: getattr(self, part_name) for part_name in BYTE_PURPOSES}


BYTE_PURPOSES = tuple(field.name for field in fields(StoredBytes))
NO_STORED_BYTES = StoredBytes()


def unquantized_bytes(element_count: Number, dtype: str) -> StoredBytes:
    """Returns the bytes of a number of elements in an unquantized number format."""
    return StoredBytes(unconverted=packed_bytes(element_count, dtype))


@frozen(slots=True)
class WeightTensor:
    """A weight tensor of the model, with its path and the number of its copies (equal layers).

    path: path of its module, as in the reference model.
    kind: the component that it belongs to.
    tensor: its shape and role.
    copies: number of such tensors; more than 1 only if the depth is not an integer (a symbol or an array).
    layer_index: index of the layer in its stack; None outside of layers.
    parent: the parent node of its module.
    optional_part: the optional part that it belongs to (`mtp`, `towers`); empty for the model itself.
    published_names: the names that published models give its module; empty where no list of names is read.
    """

    path: str
    kind: str
    tensor: ParamTensor
    copies: Number
    layer_index: int | None
    parent: Node
    optional_part: str = ""
    published_names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The last component of the weight's path, such as `q_proj`."""
        return self.path.rpartition(".")[2]


def weight_tensors_of(
    node_tree: Node, included_parts: frozenset[str] = frozenset(), first_copies_only: bool = False
) -> Iterator[WeightTensor]:
    """Yields every trainable tensor in the order of the tree; a tensor with tied weights appears once.

    first_copies_only: whether of modules that repeat, such as layers of one kind, only the first is walked; default
        False.
    """
    yield from _weight_tensors_below_node(node_tree.root_position(), "", 1, None, included_parts, first_copies_only)


REPEATED_LAYER = -1
"""Layer index that stands for all layers of a kind, whose tensors are then listed once."""


def _weight_tensors_below_node(
    tree_node: NodePosition,
    path: str,
    copy_count: Number,
    layer_index: int | None,
    included_parts: frozenset[str],
    first_copies_only: bool,
) -> Iterator[WeightTensor]:
    """Yields the weight tensors of all nodes below a node. path, copy_count, layer_index: of the upper node."""
    for child_tree_node in tree_node.children():
        child_node, counted_op = child_tree_node.node, child_tree_node.counted_op
        if child_node.optional and child_node.optional not in included_parts:
            continue
        child_path = f"{path}.{child_node.name}" if path else child_node.name
        child_copies, child_layer = copy_count, layer_index
        if child_node.indices is None:
            child_copies = times(copy_count, child_node.repeat)
        else:
            child_layer = REPEATED_LAYER
        child_tensors = chain(
            (
                WeightTensor(
                    *(child_path, child_tree_node.kind, tensor, child_copies, child_layer),
                    *(tree_node.node, child_tree_node.optional_part),
                )
                for tensor in (() if counted_op is None else counted_op.tensors())
            ),
            _weight_tensors_below_node(
                child_tree_node, child_path, child_copies, child_layer, included_parts, first_copies_only
            ),
        )
        if child_node.indices is None:
            yield from child_tensors
            continue
        repeated_tensors = [(tensor, tensor.path[len(child_path) :]) for tensor in child_tensors]
        for copy_index in child_node.indices[:1] if first_copies_only else child_node.indices:
            for tensor, path_in_layer in repeated_tensors:  # `replace` takes three times as long
                yield WeightTensor(
                    f"{child_path}.{copy_index}{path_in_layer}",
                    tensor.kind,
                    tensor.tensor,
                    tensor.copies,
                    copy_index if tensor.layer_index == REPEATED_LAYER else tensor.layer_index,
                    tensor.parent,
                    tensor.optional_part,
                )


@frozen
class QuantizationScheme:
    """A scheme for the quantization of weights: which tensors are quantized, and the stored bytes of each tensor.

    label: its short name.
    source: the source of its layout.
    remarks: notes for the user from the function that created it.
    """

    label: str
    source: str
    remarks: tuple[str, ...] = ()

    @property
    def depends_on_module_names(self) -> bool:
        """Whether the scheme decides by a module's name if a tensor is quantized."""
        return False

    def mark_entries_used(self, module_names: tuple[str, ...]) -> None:
        """Marks config list entries that match an uncounted module as used, so that they are not reported as unused."""

    def bytes_by_tensor(
        self, spec: ModelSpec, params: list[WeightTensor], dtype: str
    ) -> Iterator[tuple[WeightTensor, StoredBytes]]:
        """Yields each tensor and the bytes of one copy of the tensor.

        dtype: number format of unconverted tensors.
        Raises `InputError` for a tensor that the format cannot store.
        """
        raise TypeError(f"{type(self).__name__} stores nothing")

    @property
    def kernels(self) -> frozenset[str]:
        """The serving engines' kernels that the scheme's formats need, such as `awq`; empty if no kernel is known."""
        return frozenset()

    @property
    def has_square_blocks(self) -> bool:
        """Whether a block of several rows and columns shares one scale, so that ranks' parts may cut through blocks."""
        return False

    def shard_refusal_reason(self, param: WeightTensor, whole_shape: Sequence[Number]) -> str:
        """Returns why kernels cannot compute with a rank's part of a weight; empty if they can.

        param: the part. whole_shape: the shape of the weight in the whole model.
        """
        return ""

    def notes(self) -> list[str]:
        """Notes for the user about which tensors are quantized and in which formats."""
        return [f"{self.label}: {self.source}", *self.remarks]

    def unconverted_dtype(self, dtype: str) -> str:
        """The number format of tensors that the scheme does not quantize. dtype: the model's number format."""
        return dtype


@frozen
class QuantizedSize:
    """The bytes of a model's weights under a scheme. dtype: number format of the tensors that are not quantized."""

    scheme: QuantizationScheme
    dtype: str
    by_part: StoredBytes
    by_component: dict[str, StoredBytes]

    @property
    def total(self) -> Number:
        return self.by_part.total


def quantized_size(
    spec: ModelSpec,
    quantization_scheme: QuantizationScheme,
    dtype: str = "bfloat16",
    included_parts: frozenset[str] = frozenset(),
    module_names_of: ModuleNames | None = None,
) -> QuantizedSize:
    """Computes the bytes of all parameters; a tied weight counts once. Encoders of images and audio are not quantized.

    dtype: full name of the number format of unconverted tensors; default bfloat16.
    included_parts: optional parts to include (`mtp`, `towers`).
    module_names_of: the names of the modules in the published model, which a scheme's lists are matched with; default
        those of Llama's class.
    Raises `InputError` for a tensor that the scheme's format cannot store.
    """
    parts_by_component: dict[str, StoredBytes] = {}
    for tensor, stored_parts in stored_tensors(spec, quantization_scheme, dtype, included_parts, module_names_of):
        parts_by_component[tensor.kind] = (
            parts_by_component.get(tensor.kind, NO_STORED_BYTES) + stored_parts * tensor.copies
        )
    total_parts = sum(parts_by_component.values(), NO_STORED_BYTES)
    return QuantizedSize(
        quantization_scheme, quantization_scheme.unconverted_dtype(dtype), total_parts, parts_by_component
    )


def stored_tensors(
    spec: ModelSpec,
    quantization_scheme: QuantizationScheme,
    dtype: str = "bfloat16",
    included_parts: frozenset[str] = frozenset(),
    module_names_of: ModuleNames | None = None,
) -> Iterator[tuple[WeightTensor, StoredBytes]]:
    """Yields each tensor of a model and the bytes of one copy; a tied tensor once (`quantized_size`)."""
    largest_depth = max(stack.num_hidden_layers for _, stack in spec.stacks())
    if isinstance(largest_depth, int) and largest_depth > MAX_LAYERS:
        raise InputError(
            f"num_hidden_layers: {largest_depth} layers are too many for --quantize; expected at most {MAX_LAYERS}"
        )
    node_tree = spec.tree()
    params = list(weight_tensors_of(node_tree, included_parts))
    if quantization_scheme.depends_on_module_names:
        module_names_of = module_names_of or ModuleNames(node_tree, spec.kind, {})
        params = [replace(tensor, published_names=module_names_of(tensor.path)) for tensor in params]
        included_paths = {weight_tensor.path for weight_tensor in params}
        for tensor_path in (
            weight_tensor.path
            for weight_tensor in weight_tensors_of(node_tree, frozenset({MTP.name}))
            if weight_tensor.path not in included_paths
        ):
            quantization_scheme.mark_entries_used(module_names_of(tensor_path))
    text_tensors = [weight_tensor for weight_tensor in params if weight_tensor.optional_part != TOWERS.name]
    encoder_tensors = [weight_tensor for weight_tensor in params if weight_tensor.optional_part == TOWERS.name]
    if encoder_tensors and quantization_scheme.unconverted_dtype(dtype) != dtype:
        raise InputError(
            f"{TOWERS.option}: {quantization_scheme.label} files do not include vision and audio encoders, which are "
            f"in a separate file; remove {TOWERS.option}"
        )
    encoder_parts = ((tensor, unquantized_bytes(tensor.tensor.size, dtype)) for tensor in encoder_tensors)
    yield from chain(quantization_scheme.bytes_by_tensor(spec, text_tensors, dtype), encoder_parts)
