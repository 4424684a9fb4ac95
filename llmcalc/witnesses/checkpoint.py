"""Compares the tensors of a checkpoint with those of a spec, by layer and by shape, whatever their names.

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

NO_PARAMETERS = re.compile(
    r"(inv_freq|masked_bias|position_ids|token_type_ids|(^|\.)attn\.bias|(^|\.)attention\.bias|rope_freqs\.weight|rotary_emb\..*)$"
)
"""Names of buffers in the checkpoints of some classes: masks, positions, frequencies."""

NUMBER = re.compile(r"(?:^|\.)([0-9]{1,9})\.")


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
    by_word: dict[tuple[str, int], list[Expected]] = defaultdict(list)  # last word of the node, axes
    for e in left:
        by_word[e.node.rpartition(".")[2], len(e.shape)].append(e)
    order = {id(e): i for i, e in enumerate(left)}
    for t, shape in open_:
        words = set(t.name.split("."))
        same = (e for word in words for e in by_word.get((word, len(shape)), ())[:1])
        near = min(same, key=lambda e: order[id(e)], default=None)
        if near is not None:
            left.remove(near)
            by_word[near.node.rpartition(".")[2], len(shape)].remove(near)
            result.misshapen.append((near, t))
        else:
            result.extra.append(t)
    result.missing += [e for e in left if not e.buffer]  # a checkpoint may lack buffers


Open = list[tuple[StoredTensor, Shape]]


def _alike(left: list[Expected], open_: Open, result: Match) -> Open:
    """Matches tensors one to one by shape, then by transposed shape; similar names first."""
    by_shape: dict[Shape, list[Expected]] = defaultdict(list)
    for e in left:
        by_shape[e.shape].append(e)
    for turned in (False, True):
        for named in (True, False):
            rest: Open = []
            for t, shape in open_:
                same = by_shape.get(shape if not turned else _turned(shape))
                found = next((e for e in same if not named or _same_name(e.node, t.name)), None) if same else None
                if found is None:
                    rest.append((t, shape))
                else:
                    left.remove(found)
                    by_shape[found.shape].remove(found)
                    result.matched += 1
            open_ = rest
    return open_


def _turned(shape: Shape) -> Shape:
    """The shape of the transposed matrix, or of a stack of them."""
    return (*shape[:-2], *shape[-2:][::-1])


def _one_by_one_experts(left: list[Expected], open_: Open, result: Match) -> Open:
    """Matches a stack of n matrices or vectors with n stored ones, grouped by the last word of their names."""
    stacks = [e for e in left if len(e.shape) > 1]
    shapes = {shape for e in stacks for shape in (e.shape[1:], e.shape[:0:-1])}
    by_shape: dict[Shape, dict[str, list[int]]] = defaultdict(dict)  # shape → word → which of `open_`
    for i, (t, shape) in enumerate(open_):
        if shape in shapes:
            by_shape[shape].setdefault(_word(t.name), []).append(i)
    used: set[int] = set()
    for e in stacks:
        alike = [by_shape[shape] for shape in {e.shape[1:], e.shape[:0:-1]} if shape in by_shape]
        counts = Counter({word: 0 for words in alike for word in words})
        for words in alike:
            counts.update({word: len(which) for word, which in words.items()})
        fits = {
            word: [i for words in alike for i in words.get(word, ())]
            for word, count in counts.items()
            if count == e.shape[0]
        }
        if fits:
            word = min(fits, key=lambda word: (word not in e.node, min(fits[word])))
            used.update(fits[word])
            for words in alike:
                words.pop(word, None)
            left.remove(e)
            result.matched += 1
    return [o for i, o in enumerate(open_) if i not in used]


def _stacked(left: list[Expected], open_: Open, result: Match) -> Open:
    """Matches two or three tensors of one parent with a fused tensor, along rows, or along columns if transposed."""
    rest: Open = []
    fused: dict[int, dict[Shape, tuple[Expected, ...]]] = {}  # axes → shape → the tensors that are fused to it
    for t, shape in open_:
        axes = len(shape)
        if axes not in fused:
            fused[axes] = _fused_shapes(left, axes)
        found = fused[axes].get(shape)
        if found is None:
            rest.append((t, shape))
        else:
            for e in found:
                left.remove(e)
                result.matched += 1
            fused = {}
    return rest


def _fused_shapes(left: list[Expected], axes: int) -> dict[Shape, tuple[Expected, ...]]:
    """Shape → the first tensors of one parent that have it when they are put together, or its transpose."""
    shapes: dict[Shape, tuple[Expected, ...]] = {}
    for group in _groups(left, axes):
        for axis in range(max(0, axes - 2), axes):
            if len({(*e.shape[:axis], *e.shape[axis + 1 :]) for e in group}) == 1:
                first = group[0].shape
                joined = (*first[:axis], sum(e.shape[axis] for e in group), *first[axis + 1 :])
                shapes.setdefault(joined, group)
                shapes.setdefault(_turned(joined), group)
    return shapes


def _groups(left: list[Expected], axes: int) -> Iterator[tuple[Expected, ...]]:
    by_parent: dict[str, list[Expected]] = defaultdict(list)
    for e in left:
        if len(e.shape) == axes:
            by_parent[e.node.rpartition(".")[0] if axes > 1 else ""].append(e)  # vectors are only compared by size
    for members in by_parent.values():
        for size in (2, 3, 4):
            yield from combinations(members[:8], size)


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
    wanted = {(e.shape, word) for e in result.missing for word in _words_of_node(e)}
    shapes = {shape for shape, _ in wanted}
    places: dict[tuple[Shape, str, str], deque[int]] = defaultdict(deque)  # shape, word, side → which of the extra ones
    for i, t in enumerate(result.extra):
        shape = _squeezed(t.shape)
        if shape in shapes:
            side = _side(t.name)
            for word in set(_WORDS.split(t.name)):
                if (shape, word) in wanted:
                    places[shape, word, side].append(i)
    missing: list[Expected] = []
    used: set[int] = set()
    for e in result.missing:
        side = _side(e.node)
        firsts: list[int] = []
        for word in _words_of_node(e):
            for of in {side} if side else SIDES:
                alike = places.get((e.shape, word, of), deque())
                while alike and alike[0] in used:
                    alike.popleft()
                firsts += [alike[0]] if alike else []
        if not firsts:
            missing.append(e)
            continue
        used.add(min(firsts))
        result.matched += 1
    result.missing = missing
    result.extra = [t for i, t in enumerate(result.extra) if i not in used]


_WORDS = re.compile(r"[._]")

SIDES = "", "enc", "dec"


def _words_of_node(expected: Expected) -> set[str]:
    return set(_WORDS.split(expected.node)) - {"layers", "encoder", "decoder"}


def _side(name: str) -> str:
    """The stack of an encoder-decoder that a name mentions; empty if none."""
    sides = re.findall(r"(?:^|\.)(enc|dec)", name)
    return sides[0] if sides else ""


def _again(spec: ModelSpec, result: Match) -> None:
    """Accepts a second copy of a tied output head."""
    if not spec.tie_word_embeddings:
        return
    head = (spec.vocab_size, spec.embedding_size or spec.hidden_size)
    result.again += [t for t in result.extra if t.shape == head]
    result.extra = [t for t in result.extra if t.shape != head]
