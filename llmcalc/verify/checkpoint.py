"""Compares the tensors of a checkpoint with those of a spec, by layer and by shape, whatever their names.

Checkpoints name and pack the same weights in many ways. Within each layer, a stored tensor matches an expected one of
the same or the transposed shape. It matches several expected tensors that it concatenates or stacks (fused q, k and v;
fused gate and up; stacked experts). Several stored tensors match one expected tensor (experts stored one by one).
Unmatched tensors are missing, extra or, if a stored tensor with a similar name has another shape, misshapen.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

from ..model import ModelSpec
from ..sources.checkpoints.header import Checkpoint, StoredTensor
from .checks import module_paths

Shape = tuple[int, ...]

NO_PARAMETERS = re.compile(
    r"(inv_freq|masked_bias|position_ids|token_type_ids|(^|\.)attn\.bias|(^|\.)attention\.bias|rope_freqs\.weight|rotary_emb\..*)$"
)
"""Names of buffers in the checkpoints of some classes: masks, positions, frequencies."""

NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor of the spec.

    node: the path of its module.
    shape: its shape.
    buffer: whether it is a buffer instead of a parameter, false by default.
    """

    node: str
    shape: Shape
    buffer: bool = False


@dataclass
class Match:
    """The result of matching a checkpoint against a spec.

    matched: the number of matched expected tensors.
    missing: expected tensors that the checkpoint lacks.
    extra: stored tensors that the spec lacks.
    misshapen: (expected, stored) pairs with different shapes.
    again: stored copies of a tied weight.
    buffers: stored masks and similar buffers.
    """

    matched: int = 0
    missing: list[Expected] = field(default_factory=list)
    extra: list[StoredTensor] = field(default_factory=list)
    misshapen: list[tuple[Expected, StoredTensor]] = field(default_factory=list)
    again: list[StoredTensor] = field(default_factory=list)
    buffers: list[StoredTensor] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.missing or self.extra or self.misshapen) and self.matched > 0


def expected_tensors(spec: ModelSpec) -> Iterator[Expected]:
    """Yields every parameter and checkpoint buffer of the spec, except those of multi-token-prediction modules."""
    tree = spec.tree()
    for place in tree.walk():
        use = place.use
        if use is None or place.optional:
            continue
        for path in module_paths(place):
            for tensor in use.tensors():
                yield Expected(path, _squeezed(tensor.shape))
            if use.buffers():
                yield Expected(path, (use.buffers(),), buffer=True)


def _squeezed(shape: Shape) -> Shape:
    """The shape without axes of length 1, which only some classes have."""
    return tuple(n for n in shape if n != 1) or (1,)


def match(spec: ModelSpec, checkpoint: Checkpoint) -> Match:
    """Matches every tensor of the spec and of the checkpoint."""
    result, wanted, stored = Match(), defaultdict(list), defaultdict(list)
    for e in expected_tensors(spec):
        wanted[_group(e.node, spec)].append(e)
    for t in checkpoint.tensors:
        if NO_PARAMETERS.search(t.name):
            result.buffers.append(t)
        else:
            stored[_group(t.name, spec)].append(t)
    for group in {**wanted, **stored}:
        _match_group(wanted[group], stored[group], result)
    _elsewhere(result)
    _again(spec, result)
    return result


def _group(name: str, spec: ModelSpec) -> tuple[str, int]:
    """The stack and the number of the layer that a name belongs to: (stack, number); ("", −1) outside of layers."""
    number = NUMBER.search(name)
    if number is None:
        return "", -1
    side = ""
    if spec.kind == "encoder-decoder":
        side = "encoder" if re.search(r"(^|\.)enc", name) else "decoder"
    return side, int(number[1])


def _match_group(wanted: list[Expected], stored: list[StoredTensor], result: Match) -> None:
    left = list(wanted)
    open_ = [(t, _squeezed(t.shape)) for t in stored]
    for step in (_alike, _one_by_one_experts, _stacked):
        open_ = step(left, open_, result)
    for t, shape in open_:
        near = next((e for e in left if _same_name(e.node, t.name) and len(e.shape) == len(shape)), None)
        if near is not None:
            left.remove(near)
            result.misshapen.append((near, t))
        else:
            result.extra.append(t)
    result.missing += [e for e in left if not e.buffer]  # a checkpoint may lack buffers


Open = list[tuple[StoredTensor, Shape]]


def _alike(left: list[Expected], open_: Open, result: Match) -> Open:
    """Matches tensors one to one by shape, then by transposed shape; similar names first."""
    for turned in (False, True):
        for named in (True, False):
            rest: Open = []
            for t, shape in open_:
                target = shape if not turned else (*shape[:-2], *shape[-2:][::-1])
                found = next((e for e in left if e.shape == target and (not named or _same_name(e.node, t.name))), None)
                if found is None:
                    rest.append((t, shape))
                else:
                    left.remove(found)
                    result.matched += 1
            open_ = rest
    return open_


def _one_by_one_experts(left: list[Expected], open_: Open, result: Match) -> Open:
    """Matches a stack of n matrices or vectors with n stored ones, grouped by the last word of their names."""
    for e in [e for e in left if len(e.shape) > 1]:
        count, one = e.shape[0], e.shape[1:]
        by_word: dict[str, list[int]] = defaultdict(list)
        for i, (t, shape) in enumerate(open_):
            if shape in (one, one[::-1]):
                by_word[_word(t.name)].append(i)
        fits = [word for word, which in by_word.items() if len(which) == count]
        fits.sort(key=lambda word: word not in e.node)
        if fits:
            used = set(by_word[fits[0]])
            open_ = [o for i, o in enumerate(open_) if i not in used]
            left.remove(e)
            result.matched += 1
    return open_


def _stacked(left: list[Expected], open_: Open, result: Match) -> Open:
    """Matches two or three tensors of one parent with a fused tensor, along rows, or along columns if transposed."""
    rest: Open = []
    for t, shape in open_:
        found = next((group for group in _groups(left, len(shape)) if _joins(group, shape)), None)
        if found is None:
            rest.append((t, shape))
        else:
            for e in found:
                left.remove(e)
                result.matched += 1
    return rest


def _groups(left: list[Expected], axes: int) -> Iterator[tuple[Expected, ...]]:
    by_parent: dict[str, list[Expected]] = defaultdict(list)
    for e in left:
        if len(e.shape) == axes:
            by_parent[e.node.rpartition(".")[0] if axes > 1 else ""].append(e)  # vectors are only compared by size
    for members in by_parent.values():
        for size in (2, 3, 4):
            yield from combinations(members[:8], size)


def _joins(group: tuple[Expected, ...], shape: Shape) -> bool:
    for axis in range(max(0, len(shape) - 2), len(shape)):
        for target in (shape, (*shape[:-2], *shape[-2:][::-1])):
            others = {(*e.shape[:axis], *e.shape[axis + 1 :]) for e in group}
            if others == {(*target[:axis], *target[axis + 1 :])} and sum(e.shape[axis] for e in group) == target[axis]:
                return True
    return False


def _word(name: str) -> str:
    """The last word of a name, without numbers and `weight`: `experts.3.w1.weight` → `w1`; `bias` keeps its parent."""
    parts = [p for p in name.split(".") if not p.isdigit()]
    ending = parts[-1] if parts else ""
    return (
        ".".join(parts[-2:]) if ending == "bias" else (parts[-2] if ending == "weight" and len(parts) > 1 else ending)
    )


def _same_name(node: str, name: str) -> bool:
    return node.rpartition(".")[2] in name.split(".")


def _elsewhere(result: Match) -> None:
    """Matches a tensor that is in a layer of the file and outside of the layers in the spec, or the other way round.

    T5's files have the table of relative positions in the first layer. Shape and a word of the name must match."""
    for e in list(result.missing):
        words = set(re.split(r"[._]", e.node)) - {"layers", "encoder", "decoder"}
        alike = (t for t in result.extra if _squeezed(t.shape) == e.shape and words & set(re.split(r"[._]", t.name)))
        found = next((t for t in alike if _side(e.node) in ("", _side(t.name))), None)
        if found is not None:
            result.missing.remove(e)
            result.extra.remove(found)
            result.matched += 1


def _side(name: str) -> str:
    """The stack of an encoder-decoder that a name mentions; empty if none."""
    sides = re.findall(r"(?:^|\.)(enc|dec)", name)
    return sides[0] if sides else ""


def _again(spec: ModelSpec, result: Match) -> None:
    """Accepts a second copy of a tied output head."""
    if not spec.tie_word_embeddings:
        return
    for t in [t for t in result.extra if t.shape == (spec.vocab_size, spec.embedding_size or spec.hidden_size)]:
        result.extra.remove(t)
        result.again.append(t)
