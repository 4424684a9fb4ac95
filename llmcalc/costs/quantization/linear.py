"""Schemes that convert each linear layer of a model separately and leave the other tensors unconverted.

Unconverted tensors:
- embeddings, norms, biases, convolutions, and any other tensor that is not a weight matrix
- routers, which published checkpoints never convert
- projections between parallel residual streams, which are not modules
- stacked block-diagonal matrices outside of experts, which are not `nn.Linear`; the grouped attention output of
  DeepSeek-V4 is one, so it is converted
- the output head, unless the scheme converts it
- vision and audio encoders
- modules that the config lists
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import field, replace
from typing import Literal, TypeAlias

from ...algebra import Number
from ...errors import InputError
from ...frozen import frozen
from ...model import ModelSpec
from ...ops import ExpertLinear
from ...units import DTYPE_BITS
from .base import UNCOUNTED_SCHEME_ADVICE, QuantizationScheme, StoredBytes, WeightTensor, unquantized_bytes
from .fields import ConfigFields
from .formats import IndivisibleMatrix, LinearFormat
from .patterns import ModuleList

SchemeScope: TypeAlias = Literal["linear", "experts"]

HEAD_COMPONENTS = ("lm_head", "classifier", "projection")
"""Components that are the linear layers of an output head."""

UNCONVERTED_COMPONENTS = ("router", "residual", "mtp")
"""Components that no scheme converts. `mtp` is the input projection of MTP modules (`eh_proj`), bf16 in DeepSeek-V3."""

COMPONENTS_OUTSIDE_LAYERS = ("embedding", "pooler", *HEAD_COMPONENTS)
"""Components outside of transformer layers, which AutoAWQ and AutoGPTQ do not convert."""


@frozen
class LayerGroup:
    """A set of linear layers that share a storage format.

    format: their storage format; None if they stay unconverted.
    modules: the layers; None for all.
    expert_format: the format of routed experts; None for the same format.
    """

    format: LinearFormat | None
    modules: ModuleList | None = None
    expert_format: LinearFormat | None = None


@frozen
class LinearScheme(QuantizationScheme):
    """A quantization scheme for linear layers, which leaves all other tensors in the model's number format.

    groups: the first group that names a layer gives its format.
    scope: all linear layers, or routed experts only.
    converts_head: whether output heads are converted; default False.
    converts_embeddings: whether tables of embeddings are converted; default False.
    converts_outside_layers: whether the gate of shared experts (of one output feature) and every `nn.Linear` outside
        of layers are converted; default False.
    excluded_modules: modules that stay unconverted.
    config_section: where the scheme is stated, in messages; default the option `--quantize`.
    """

    groups: tuple[LayerGroup, ...] = ()
    scope: SchemeScope = "linear"
    converts_head: bool = False
    converts_embeddings: bool = False
    converts_outside_layers: bool = False
    excluded_modules: ModuleList = field(default_factory=lambda: ModuleList(()))
    config_section: str = ""

    def _unsupported_error(self, refusal_reason: str) -> InputError:
        """Returns the error that explains why the scheme cannot store the model."""
        if self.config_section:
            return InputError(f"{self.config_section}: {refusal_reason} ({UNCOUNTED_SCHEME_ADVICE})")
        return InputError(f"--quantize {self.label}: {refusal_reason}")

    @property
    def depends_on_module_names(self) -> bool:
        return bool(self.excluded_modules.entries) or any(group.modules is not None for group in self.groups)

    def mark_entries_used(self, module_names: tuple[str, ...]) -> None:
        for module_list in (
            self.excluded_modules,
            *(module_group.modules for module_group in self.groups if module_group.modules is not None),
        ):
            module_list.mark_entries_used(module_names)

    def bytes_by_tensor(
        self, spec: ModelSpec, params: list[WeightTensor], dtype: str
    ) -> Iterator[tuple[WeightTensor, StoredBytes]]:
        has_converted_tensor = False
        bytes_of_tensors: dict[tuple[Hashable, ...], StoredBytes] = {}  # equal ones of the layers of a kind
        for param in params:
            tensor_key = id(param.tensor), id(param.parent), param.kind, param.name, param.published_names
            if tensor_key in bytes_of_tensors:
                yield param, bytes_of_tensors[tensor_key]
                continue
            linear_format = self._format_of_tensor(param)
            if linear_format is None:
                bytes_of_tensors[tensor_key] = unquantized_bytes(param.tensor.size, dtype)
                yield param, bytes_of_tensors[tensor_key]
                continue
            has_converted_tensor = True
            matrix_count, out_features, in_features = _matrix_shapes(param)
            refusal_reason = linear_format.refusal_reason(out_features, in_features)
            if refusal_reason:
                remedy_text = "expected another scheme, or a model whose sizes it can hold"
                unsupported_error = self._unsupported_error(f"{param.path}: {refusal_reason}; {remedy_text}")
                raise IndivisibleMatrix(str(unsupported_error), param.path, refusal_reason)
            stored_bytes = linear_format.bytes_by_part(out_features, in_features, DTYPE_BITS[dtype] // 8)
            if param.tensor.role == "table":
                stored_bytes = replace(stored_bytes, other=0)  # scales of activations, which a table has none of
            bytes_of_tensors[tensor_key] = stored_bytes * matrix_count
            yield param, bytes_of_tensors[tensor_key]
        if not has_converted_tensor:
            scope_text = "routed experts" if self.scope == "experts" else "linear layers that are not excluded"
            raise self._unsupported_error(f"converts {scope_text}, and this model has none; expected another scheme")

    @property
    def kernels(self) -> frozenset[str]:
        formats = (linear_format for group in self.groups for linear_format in (group.format, group.expert_format))
        return frozenset(linear_format.kernel_type for linear_format in formats if linear_format is not None) - {""}

    @property
    def has_square_blocks(self) -> bool:
        formats = (linear_format for group in self.groups for linear_format in (group.format, group.expert_format))
        return any(linear_format is not None and linear_format.has_square_blocks for linear_format in formats)

    def shard_refusal_reason(self, param: WeightTensor, whole_shape: Sequence[Number]) -> str:
        shape = param.tensor.shape
        if len(shape) < 2 or len(whole_shape) < 2 or shape == whole_shape:
            return ""
        linear_format = self._format_of_tensor(param)
        if linear_format is None:
            return ""
        return linear_format.shard_refusal_reason((shape[-2], shape[-1]), (whole_shape[-2], whole_shape[-1]))

    def _format_of_tensor(self, param: WeightTensor) -> LinearFormat | None:
        """Returns the storage format of a quantized tensor; None if the scheme does not quantize the tensor."""
        is_expert_stack = param.kind == "experts" and len(param.tensor.shape) == 3
        is_single_matrix = (len(param.tensor.shape) == 2 or _is_grouped_projection(param)) and self.scope == "linear"
        if (
            not (param.tensor.role == "matrix" or (self.converts_embeddings and param.tensor.role == "table"))
            or param.kind in UNCONVERTED_COMPONENTS
            or not (is_expert_stack or is_single_matrix)
        ):
            if param.tensor.role == "matrix":
                self.excluded_modules.mark_entries_used(param.published_names)
            return None
        is_output_head = param.kind in HEAD_COMPONENTS and param.name not in ("dense", "head_proj")
        if (
            (is_output_head and not self.converts_head)
            or (not self.converts_outside_layers and _is_skipped_by_quantizers(param) and not is_output_head)
            or param.published_names in self.excluded_modules
        ):
            return None
        module_group = next(
            (group for group in self.groups if group.modules is None or param.published_names in group.modules),
            None,
        )
        if module_group is None:
            return None
        return (
            module_group.expert_format
            if is_expert_stack and module_group.expert_format is not None
            else module_group.format
        )

    def notes(self) -> list[str]:
        scope_text = "routed experts only" if self.scope == "experts" else "linear layers"
        note_texts = [f"{self.label} ({self.source}): {scope_text}: {'; '.join(dict.fromkeys(self._used_formats()))}"]
        output_head_text = "" if self.converts_head else ", output head"
        attention_text = ", attention" if self.scope == "experts" else ""
        embeddings_text = "" if self.converts_embeddings else "embeddings"
        unconverted_text = f"{embeddings_text}{output_head_text}{attention_text}, norms, biases, routers".removeprefix(
            ", "
        )
        note_texts.append(
            f"unconverted: {unconverted_text}"
            + (" and the modules that the config lists" if self.excluded_modules.entries else "")
        )
        converted_modules = [layer_group.modules for layer_group in self.groups if layer_group.modules is not None]
        for verb, module_lists in (("excludes", [self.excluded_modules]), ("converts", converted_modules)):
            unmatched_entries = [list_entry for modules in module_lists for list_entry in modules.unmatched_entries]
            if unmatched_entries:
                more_text = f" and {len(unmatched_entries) - 3} more" if len(unmatched_entries) > 3 else ""
                entries_text = ", ".join(unmatched_entries[:3])
                note_texts.append(f"the config {verb} modules that are not in this model: {entries_text}{more_text}")
        return [*note_texts, *self.remarks]

    def _used_formats(self) -> Iterator[str]:
        for module_group in self.groups:
            if module_group.format is not None:
                yield module_group.format.describe()
            if module_group.expert_format is not None:
                yield f"experts in {module_group.expert_format.describe()}"


def module_list_of_fields(config: ConfigFields, *field_names: str) -> ModuleList:
    """Returns module names listed in the config's fields with these names, by default `modules_to_not_convert`."""
    field_names = field_names or ("modules_to_not_convert",)
    return ModuleList(config.get_all_strings(*field_names), config_field=field_names[0])


def scheme_of_every_linear(config: ConfigFields, quantization_scheme: LinearScheme, *field_names: str) -> LinearScheme:
    """Returns a scheme that converts every `nn.Linear` except the modules in the config's list, as in transformers.

    field_names: config fields that may hold the list, as in `module_list_of_fields`. The output head is unconverted
    with no list, or if the list names it.
    """
    has_module_list = any(config.get(name) is not None for name in field_names or ("modules_to_not_convert",))
    return replace(
        quantization_scheme,
        converts_head=has_module_list,
        converts_outside_layers=True,
        excluded_modules=module_list_of_fields(config, *field_names),
    )


def _is_skipped_by_quantizers(param: WeightTensor) -> bool:
    """Whether quantizers that work layer by layer skip a linear layer."""
    return param.name == "shared_expert_gate" or param.kind in COMPONENTS_OUTSIDE_LAYERS


def _is_grouped_projection(param: WeightTensor) -> bool:
    """Whether a tensor is a grouped attention projection, whose groups one `nn.Linear` stores as rows."""
    op = next((sibling_node.op for sibling_node in param.parent.children if sibling_node.name == param.name), None)
    return param.kind == "attention" and isinstance(op, ExpertLinear) and op.top_k == op.num_experts


def _matrix_shapes(param: WeightTensor) -> tuple[Number, Number, Number]:
    """Returns (number of matrices, rows, columns) of the matrices in a tensor."""
    shape = param.tensor.shape
    if len(shape) == 2:
        return (1, *shape)
    return (1, shape[0] * shape[1], shape[2]) if _is_grouped_projection(param) else (shape[0], shape[1], shape[2])
