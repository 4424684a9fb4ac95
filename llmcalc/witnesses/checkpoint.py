"""Compares a checkpoint's tensors with the model's tensors by layer and shape, whatever their names are.

Checkpoints name and pack the same weights in many ways. Within each layer, a stored tensor matches an expected one of
the same or the transposed shape. It matches several expected tensors that it concatenates or stacks (fused q, k and v;
fused gate and up; stacked experts). Several stored tensors match one expected tensor (experts stored one by one).
Unmatched tensors are missing, extra or, if a stored tensor with a similar name has another shape, misshapen.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from ..model import ModelSpec
from ..sources.checkpoints.header import Checkpoint, StoredTensor
from .checks import module_paths

Shape = tuple[int, ...]

NON_PARAMETER_NAMES = re.compile(
    r"(inv_freq|masked_bias|position_ids|token_type_ids|(^|\.)attn\.bias|(^|\.)attention\.bias|rope_freqs\.weight|rotary_emb\..*)$"
)
"""Pattern of tensor names in checkpoints that are buffers, not parameters: masks, positions, frequencies."""

LAYER_NUMBER = re.compile(r"(?:^|\.)([0-9]{1,9})\.")


@dataclass(frozen=True, slots=True)
class ExpectedTensor:
    """A tensor that a checkpoint of the spec must have.

    node: the path of its module.
    shape: its shape.
    is_buffer: whether it is a buffer instead of a parameter, false by default.
    """

    node: str
    shape: Shape
    is_buffer: bool = False


@dataclass
class TensorMatch:
    """The result of matching a checkpoint's tensors with a spec's tensors.

    matched_count: the number of matched expected tensors.
    missing: expected tensors that the checkpoint lacks.
    unexpected: stored tensors that the spec lacks.
    shape_mismatches: (expected, stored) pairs with different shapes.
    tied_copies: second copies of a tied weight.
    buffers: stored masks and similar buffers.
    """

    matched_count: int = 0
    missing: list[ExpectedTensor] = field(default_factory=list)
    unexpected: list[StoredTensor] = field(default_factory=list)
    shape_mismatches: list[tuple[ExpectedTensor, StoredTensor]] = field(default_factory=list)
    tied_copies: list[StoredTensor] = field(default_factory=list)
    buffers: list[StoredTensor] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return not (self.missing or self.unexpected or self.shape_mismatches) and self.matched_count > 0


def expected_tensors(spec: ModelSpec) -> Iterator[ExpectedTensor]:
    """Yields every parameter and checkpoint buffer of the spec, except in multi-token-prediction modules."""
    model_tree = spec.tree()
    for positioned_node in model_tree.walk():
        counted_op = positioned_node.counted_op
        if counted_op is None or positioned_node.optional_part:
            continue
        for module_path in module_paths(positioned_node):
            for param_tensor in counted_op.tensors():
                yield ExpectedTensor(module_path, _remove_unit_axes(param_tensor.shape))
            if counted_op.buffers():
                yield ExpectedTensor(module_path, (counted_op.buffers(),), is_buffer=True)


def _remove_unit_axes(shape: Shape) -> Shape:
    """Returns a shape without axes of length 1, which the tensors of some classes have."""
    return tuple(axis_length for axis_length in shape if axis_length != 1) or (1,)


def match_tensors(spec: ModelSpec, checkpoint: Checkpoint) -> TensorMatch:
    """Matches the tensors of the spec with the tensors of the checkpoint."""
    tensor_match, expected_by_group, stored_by_group = TensorMatch(), defaultdict(list), defaultdict(list)
    for expected_tensor in expected_tensors(spec):
        expected_by_group[_layer_of_name(expected_tensor.node, spec)].append(expected_tensor)
    for stored_tensor in checkpoint.tensors:
        if NON_PARAMETER_NAMES.search(stored_tensor.name):
            tensor_match.buffers.append(stored_tensor)
        else:
            stored_by_group[_layer_of_name(stored_tensor.name, spec)].append(stored_tensor)
    for group_key in {**expected_by_group, **stored_by_group}:
        _match_fused_group(expected_by_group[group_key], stored_by_group[group_key], tensor_match)
    _match_inside_with_outside_layers(tensor_match)
    _accept_tied_head_copies(spec, tensor_match)
    return tensor_match


def _layer_of_name(tensor_name: str, spec: ModelSpec) -> tuple[str, int]:
    """Returns the stack and the layer number in a tensor's name; ("", −1) outside of layers."""
    layer_number = LAYER_NUMBER.search(tensor_name)
    if layer_number is None:
        return "", -1
    stack_name = ""
    if spec.kind == "encoder-decoder":
        stack_name = "encoder" if re.search(r"(^|\.)enc", tensor_name) else "decoder"
    return stack_name, int(layer_number[1])


def _match_fused_group(
    expected_tensors: list[ExpectedTensor], stored_tensors: list[StoredTensor], tensor_match: TensorMatch
) -> None:
    unmatched_tensors = list(expected_tensors)
    remaining_tensors = [(stored_tensor, _remove_unit_axes(stored_tensor.shape)) for stored_tensor in stored_tensors]
    for match_function in (_match_equal_shapes, _match_expert_stacks, _match_fused_tensors):
        remaining_tensors = match_function(unmatched_tensors, remaining_tensors, tensor_match)
    tensors_by_last_word: dict[tuple[str, int], list[ExpectedTensor]] = defaultdict(list)  # last word of the node, axes
    for expected_tensor in unmatched_tensors:
        tensors_by_last_word[expected_tensor.node.rpartition(".")[2], len(expected_tensor.shape)].append(
            expected_tensor
        )
    index_by_tensor_id = {
        id(expected_tensor): expected_index for expected_index, expected_tensor in enumerate(unmatched_tensors)
    }
    for stored_tensor, stored_shape in remaining_tensors:
        name_components = set(stored_tensor.name.split("."))
        tensors_with_last_word = (
            expected_tensor
            for name_word in name_components
            for expected_tensor in tensors_by_last_word.get((name_word, len(stored_shape)), ())[:1]
        )
        closest_tensor = min(
            tensors_with_last_word, key=lambda expected_tensor: index_by_tensor_id[id(expected_tensor)], default=None
        )
        if closest_tensor is not None:
            unmatched_tensors.remove(closest_tensor)
            tensors_by_last_word[closest_tensor.node.rpartition(".")[2], len(stored_shape)].remove(closest_tensor)
            tensor_match.shape_mismatches.append((closest_tensor, stored_tensor))
        else:
            tensor_match.unexpected.append(stored_tensor)
    tensor_match.missing += [
        expected_tensor for expected_tensor in unmatched_tensors if not expected_tensor.is_buffer
    ]  # a checkpoint may lack buffers


Unmatched = list[tuple[StoredTensor, Shape]]


def _match_equal_shapes(
    expected_tensors: list[ExpectedTensor], remaining_tensors: Unmatched, tensor_match: TensorMatch
) -> Unmatched:
    """Pairs tensors of equal shape, then of transposed shapes; similar names take precedence."""
    tensors_by_shape: dict[Shape, list[ExpectedTensor]] = defaultdict(list)
    for expected_tensor in expected_tensors:
        tensors_by_shape[expected_tensor.shape].append(expected_tensor)
    for is_transposed in (False, True):
        for requires_equal_name in (True, False):
            unmatched_stored_tensors: Unmatched = []
            for stored_tensor, stored_shape in remaining_tensors:
                candidates = tensors_by_shape.get(
                    stored_shape if not is_transposed else _transposed_shape(stored_shape)
                )
                matching_tensor = None
                if candidates:
                    matching_tensor = next(
                        (
                            expected_tensor
                            for expected_tensor in candidates
                            if not requires_equal_name or _has_same_name(expected_tensor.node, stored_tensor.name)
                        ),
                        None,
                    )
                if matching_tensor is None:
                    unmatched_stored_tensors.append((stored_tensor, stored_shape))
                else:
                    expected_tensors.remove(matching_tensor)
                    tensors_by_shape[matching_tensor.shape].remove(matching_tensor)
                    tensor_match.matched_count += 1
            remaining_tensors = unmatched_stored_tensors
    return remaining_tensors


def _transposed_shape(shape: Shape) -> Shape:
    """Returns the shape of the transposed matrix, or of a stack of transposed matrices."""
    return (*shape[:-2], *shape[-2:][::-1])


def _match_expert_stacks(
    unmatched_tensors: list[ExpectedTensor], remaining_tensors: Unmatched, tensor_match: TensorMatch
) -> Unmatched:
    """Pairs a stack of n matrices or vectors with n stored tensors that share the last word of their names."""
    expert_stacks = [expert_stack for expert_stack in unmatched_tensors if len(expert_stack.shape) > 1]
    tensor_shapes = {
        shape for expert_tensor in expert_stacks for shape in (expert_tensor.shape[1:], expert_tensor.shape[:0:-1])
    }
    words_by_shape: dict[Shape, dict[str, list[int]]] = defaultdict(dict)  # shape → word → indices in `remaining`
    for tensor_index, (candidate_tensor, shape) in enumerate(remaining_tensors):
        if shape in tensor_shapes:
            words_by_shape[shape].setdefault(_last_name_word(candidate_tensor.name), []).append(tensor_index)
    used_indices: set[int] = set()
    for expert_stack in expert_stacks:
        indices_by_word_of_shapes = [
            words_by_shape[shape]
            for shape in {expert_stack.shape[1:], expert_stack.shape[:0:-1]}
            if shape in words_by_shape
        ]
        word_counts = Counter(
            {
                name_word_of_shape: 0
                for indices_by_word in indices_by_word_of_shapes
                for name_word_of_shape in indices_by_word
            }
        )
        for indices_by_word in indices_by_word_of_shapes:
            word_counts.update({name_word: len(indices) for name_word, indices in indices_by_word.items()})
        indices_by_matching_word = {
            name_word: [
                tensor_index
                for indices_by_word in indices_by_word_of_shapes
                for tensor_index in indices_by_word.get(name_word, ())
            ]
            for name_word, tensor_count in word_counts.items()
            if tensor_count == expert_stack.shape[0]
        }
        if indices_by_matching_word:
            name_word = min(
                indices_by_matching_word,
                key=lambda name_word: (name_word not in expert_stack.node, min(indices_by_matching_word[name_word])),
            )
            used_indices.update(indices_by_matching_word[name_word])
            for indices_by_word in indices_by_word_of_shapes:
                indices_by_word.pop(name_word, None)
            unmatched_tensors.remove(expert_stack)
            tensor_match.matched_count += 1
    return [
        stored_tensor
        for tensor_index, stored_tensor in enumerate(remaining_tensors)
        if tensor_index not in used_indices
    ]


def _match_fused_tensors(
    expected_tensors: list[ExpectedTensor], remaining_tensors: Unmatched, tensor_match: TensorMatch
) -> Unmatched:
    """Pairs two or three tensors of one module with a stored tensor that is their concatenation."""
    unmatched_stored_tensors: Unmatched = []
    fused_by_shape: dict[
        int, dict[Shape, tuple[ExpectedTensor, ...]]
    ] = {}  # axes → shape → tensors that are fused to it
    for stored_tensor, stored_shape in remaining_tensors:
        axis_count = len(stored_shape)
        if axis_count not in fused_by_shape:
            fused_by_shape[axis_count] = _fused_shapes(expected_tensors, axis_count)
        fused_tensors = fused_by_shape[axis_count].get(stored_shape)
        if fused_tensors is None:
            unmatched_stored_tensors.append((stored_tensor, stored_shape))
        else:
            for fused_tensor in fused_tensors:
                expected_tensors.remove(fused_tensor)
                tensor_match.matched_count += 1
            fused_by_shape = {}
    return unmatched_stored_tensors


def _fused_shapes(expected_tensors: list[ExpectedTensor], axis_count: int) -> dict[Shape, tuple[ExpectedTensor, ...]]:
    """Returns the tensors of one parent module whose concatenation has a shape, by this shape."""
    tensors_by_shape: dict[Shape, tuple[ExpectedTensor, ...]] = {}
    for sibling_group in _tensor_groups(expected_tensors, axis_count):
        for axis in range(max(0, axis_count - 2), axis_count):
            if len({(*tensor.shape[:axis], *tensor.shape[axis + 1 :]) for tensor in sibling_group}) == 1:
                first_shape = sibling_group[0].shape
                fused_shape = (
                    *first_shape[:axis],
                    sum(tensor.shape[axis] for tensor in sibling_group),
                    *first_shape[axis + 1 :],
                )
                tensors_by_shape.setdefault(fused_shape, sibling_group)
                tensors_by_shape.setdefault(_transposed_shape(fused_shape), sibling_group)
    return tensors_by_shape


def _tensor_groups(expected_tensors: list[ExpectedTensor], axis_count: int) -> Iterator[tuple[ExpectedTensor, ...]]:
    tensors_by_parent: dict[str, list[ExpectedTensor]] = defaultdict(list)
    for expected_tensor in expected_tensors:
        if len(expected_tensor.shape) == axis_count:
            # vectors are only compared by size
            tensors_by_parent[expected_tensor.node.rpartition(".")[0] if axis_count > 1 else ""].append(expected_tensor)
    for sibling_tensors in tensors_by_parent.values():
        for group_size in (2, 3, 4):
            yield from combinations(sibling_tensors[:8], group_size)


def _last_name_word(tensor_name: str) -> str:
    """Returns the last word of a tensor's name, without numbers and `weight`: `experts.3.w1.weight` → `w1`."""
    name_components = [name_component for name_component in tensor_name.split(".") if not name_component.isdigit()]
    last_component = name_components[-1] if name_components else ""
    return (
        ".".join(name_components[-2:])
        if last_component == "bias"
        else (name_components[-2] if last_component == "weight" and len(name_components) > 1 else last_component)
    )


def _has_same_name(node_name: str, tensor_name: str) -> bool:
    return node_name.rpartition(".")[2] in tensor_name.split(".")


def _match_inside_with_outside_layers(tensor_match: TensorMatch) -> None:
    """Pairs tensors that are inside a layer in the file but outside of layers in the spec, or the reverse.

    T5's files have the table of relative positions in the first layer. Shape and a word of the name must match."""
    missing_words = {
        (expected_tensor.shape, name_word)
        for expected_tensor in tensor_match.missing
        for name_word in _name_words_of_node(expected_tensor)
    }
    tensor_shapes = {shape for shape, _ in missing_words}
    # shape, word, stack → indices of extra tensors
    tensor_indices: dict[tuple[Shape, str, str], deque[int]] = defaultdict(deque)
    for tensor_index, tensor in enumerate(tensor_match.unexpected):
        shape = _remove_unit_axes(tensor.shape)
        if shape in tensor_shapes:
            tensor_stack = _stack_in_name(tensor.name)
            for name_word in set(_WORD_SEPARATOR.split(tensor.name)):
                if (shape, name_word) in missing_words:
                    tensor_indices[shape, name_word, tensor_stack].append(tensor_index)
    unmatched_tensors: list[ExpectedTensor] = []
    used_indices: set[int] = set()
    for expected_tensor in tensor_match.missing:
        tensor_stack = _stack_in_name(expected_tensor.node)
        candidate_indices: list[int] = []
        for name_word in _name_words_of_node(expected_tensor):
            for stack_name in {tensor_stack} if tensor_stack else STACK_NAMES:
                indices = tensor_indices.get((expected_tensor.shape, name_word, stack_name), deque())
                while indices and indices[0] in used_indices:
                    indices.popleft()
                candidate_indices += [indices[0]] if indices else []
        if not candidate_indices:
            unmatched_tensors.append(expected_tensor)
            continue
        used_indices.add(min(candidate_indices))
        tensor_match.matched_count += 1
    tensor_match.missing = unmatched_tensors
    tensor_match.unexpected = [
        tensor for tensor_index, tensor in enumerate(tensor_match.unexpected) if tensor_index not in used_indices
    ]


_WORD_SEPARATOR = re.compile(r"[._]")

STACK_NAMES = "", "enc", "dec"


def _name_words_of_node(expected_tensor: ExpectedTensor) -> set[str]:
    return set(_WORD_SEPARATOR.split(expected_tensor.node)) - {"layers", "encoder", "decoder"}


def _stack_in_name(tensor_name: str) -> str:
    """Returns the stack (`encoder` or `decoder`) that a tensor's name states; empty for other names."""
    stack_names = re.findall(r"(?:^|\.)(enc|dec)", tensor_name)
    return stack_names[0] if stack_names else ""


def _accept_tied_head_copies(spec: ModelSpec, tensor_match: TensorMatch) -> None:
    """Accepts an output head in the checkpoint that copies the embedding, if the spec ties both."""
    if not spec.tie_word_embeddings:
        return
    head_shape = (spec.vocab_size, spec.embedding_size or spec.hidden_size)
    tensor_match.tied_copies += [tensor for tensor in tensor_match.unexpected if tensor.shape == head_shape]
    tensor_match.unexpected = [tensor for tensor in tensor_match.unexpected if tensor.shape != head_shape]
