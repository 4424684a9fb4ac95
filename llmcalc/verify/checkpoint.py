"""Are the tensors of a checkpoint those that a spec says? Compared by layer and by shape, whatever their names.

Checkpoints name and pack the same weights in many ways. Within each layer a stored tensor accounts for an expected one
where it has its shape, or its shape transposed; for several where it stacks them (q, k and v in one; gate and up in
one; all experts in one); and several stored ones account for one (each expert by itself). What is left over is missing,
extra, or, where a stored tensor of a like name has another shape, misshapen.
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
"""Names of buffers that checkpoints of some classes hold: masks, positions, frequencies."""

NUMBER = re.compile(r"(?:^|\.)(\d+)\.")


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor that the spec has. node: the path of its module. buffer: no parameter, but in checkpoints."""

    node: str
    shape: Shape
    buffer: bool = False


@dataclass
class Match:
    """What came of it. misshapen: (expected, stored). again: stored copies of a tied weight.
    buffers: masks and the like.
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
    """Every parameter and checkpoint buffer of the spec, prediction modules left out."""
    tree = spec.tree()
    for place in tree.walk():
        use = place.use
        if use is None or place.optional:
            continue
        for path in module_paths(tree, place.path):
            for tensor in use.tensors():
                yield Expected(path, _squeezed(tensor.shape))
            if use.buffers():
                yield Expected(path, (use.buffers(),), buffer=True)


def _squeezed(shape: Shape) -> Shape:
    """Without axes of 1, which some classes have and others have not."""
    return tuple(n for n in shape if n != 1) or (1,)


def match(spec: ModelSpec, checkpoint: Checkpoint) -> Match:
    """Accounts for every tensor of both sides."""
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
    """Which layer of which stack a name belongs to: (stack, number); ("", −1) outside of layers."""
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
    result.missing += [e for e in left if not e.buffer]  # a checkpoint may leave buffers out


Open = list[tuple[StoredTensor, Shape]]


def _alike(left: list[Expected], open_: Open, result: Match) -> Open:
    """One for one: the same shape, or that of a matrix stored the other way round; like names first."""
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
    """A stack of n matrices or vectors from n tensors of one of them, told apart by the last word of their names."""
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
    """Two or three tensors of one parent module in one: along the rows, or along the columns where it is turned."""
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
            by_parent[e.node.rpartition(".")[0] if axes > 1 else ""].append(
                e
            )  # vectors of one size are alike wherever they stand
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
    """The last part of a name that is no number and no `weight`: `experts.3.w1.weight` → `w1`; a bias keeps its own."""
    parts = [p for p in name.split(".") if not p.isdigit()]
    ending = parts[-1] if parts else ""
    return (
        ".".join(parts[-2:]) if ending == "bias" else (parts[-2] if ending == "weight" and len(parts) > 1 else ending)
    )


def _same_name(node: str, name: str) -> bool:
    return node.rpartition(".")[2] in name.split(".")


def _elsewhere(result: Match) -> None:
    """What stands in a layer in the file and beside the layers here, or the other way round: T5 keeps its table of
    relative positions in the first layer. Alike are the shape and a word of the name."""
    for e in list(result.missing):
        words = set(re.split(r"[._]", e.node)) - {"layers", "encoder", "decoder"}
        alike = (t for t in result.extra if _squeezed(t.shape) == e.shape and words & set(re.split(r"[._]", t.name)))
        found = next((t for t in alike if _side(e.node) in ("", _side(t.name))), None)
        if found is not None:
            result.missing.remove(e)
            result.extra.remove(found)
            result.matched += 1


def _side(name: str) -> str:
    """Which stack of an encoder-decoder a name speaks of; empty where it speaks of none."""
    sides = re.findall(r"(?:^|\.)(enc|dec)", name)
    return sides[0] if sides else ""


def _again(spec: ModelSpec, result: Match) -> None:
    """A tied output head that the checkpoint stores a second time is no surprise."""
    if not spec.tie_word_embeddings:
        return
    for t in [t for t in result.extra if t.shape == (spec.vocab_size, spec.embedding_size or spec.hidden_size)]:
        result.extra.remove(t)
        result.again.append(t)
