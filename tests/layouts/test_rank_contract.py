"""Contract: a rank's program of any part and any preset is refused clearly, or computes exactly the rank's share.

Each parameter is whole on every rank, or its parts add up to the model's; FLOPs and caches of divided steps add up too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from llmcalc.components.base import Component
from llmcalc.components.choices import LAYERS, parts
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.gated_delta_net import GatedDeltaNet
from llmcalc.components.mixers.mamba2 import Mamba2
from llmcalc.components.stack import Stack
from llmcalc.costs.params import total_of
from llmcalc.errors import InputError
from llmcalc.flow.program import NEVER_RUN, Alternatives, Item, Scope, Step
from llmcalc.layouts.placements import Placements
from llmcalc.layouts.rank import Shard, axes_of, is_divided, rank_program
from llmcalc.model import ModelSpec
from llmcalc.run.layout import ALONE, Layout, stages
from llmcalc.run.sight import Sight
from llmcalc.run.workload import Workload
from llmcalc.sources.presets import load_preset, model_names
from tests.contracts.test_parts import around_a_model, decoder

SIGHT = Sight(Workload(batch=2, seq=24, phase="training"))

EXAMPLES = {
    f"{part.__name__}-{i}": example
    for part in (*parts(), *LAYERS.classes(), Stack)
    for i, example in enumerate(part.examples())
}

WITH_WEIGHTS = ("linear", "absorb", "experts", "blocks", "per_group", "conv", "table", "vector")
"""Verbs with a weight that is divided where what it reads or makes is."""


class Placed(NamedTuple):
    """A step and where it stands. runs: whether any pass runs it."""

    path: str
    step: Step
    runs: bool


def placed(items: Sequence[Item], path: str = "", runs: bool = True) -> Iterator[Placed]:
    """Every step of every branch, but those that repeat heads: a rank may have as many of both."""
    for item in items:
        if isinstance(item, Alternatives):
            for name, branch in item.branches.items():
                yield from placed(branch.items, f"{path}<{name}>", runs)
            continue
        does = runs and item.about.get("role") not in NEVER_RUN
        if isinstance(item, Scope):
            yield from placed(item.items, f"{path}.{item.name}", does)
        elif item.verb != "repeat":
            yield Placed(f"{path}.{item.name or item.verb}", item, does)


def check(spec: ModelSpec, layout: Layout) -> None:
    """Holds every rank's program to the model's. Raises `InputError` where a rank has none."""
    ranks = [list(placed(rank_program(spec, layout, rank).root.items)) for rank in range(layout.tp)]
    copies = any(_has_copies(value.axes) for one in ranks[0] for value in one.step.outs)
    for whole, *parts_of in zip(placed(spec.program().root.items), *ranks, strict=True):
        assert {part.path for part in parts_of} == {whole.path}
        _check_step(whole, [part.step for part in parts_of], copies)
    for sequence_parallel in (False, True):
        how = replace(layout, sequence_parallel=sequence_parallel)
        Placements(how, SIGHT).run(rank_program(spec, how))


def _check_step(whole: Placed, ranks: list[Step], copied: bool) -> None:
    """copied: whether any step has copies of key and value heads, which a state without inputs may keep too."""
    first, op = ranks[0], whole.step.op
    shapes = [value.axes for value in (*first.ins, *first.outs)]
    divided = any(map(is_divided, shapes))
    for value, *own in zip(whole.step.outs, *(step.outs for step in ranks), strict=True):
        adds_up = sum(one.width for one in own) == value.width
        assert is_divided(own[0].axes) or own[0].width == value.width, whole.path
        assert not is_divided(own[0].axes) or adds_up or _has_copies(own[0].axes), whole.path
    if op is None:
        return
    ops: list[Any] = [step.op for step in ranks]
    copies = any(map(_has_copies, shapes))
    if "params" in op.effects:
        for tensor, *parts_of in zip(op.tensors(), *(one.tensors() for one in ops), strict=True):
            _check_tensor(whole.path, tensor.shape, [part.shape for part in parts_of], copies)
        if divided and first.verb in WITH_WEIGHTS and not copies and not getattr(op, "tied", False):
            assert sum(one.tensors()[0].size for one in ops) == op.tensors()[0].size, whole.path
    if "forward_flops" in op.effects and whole.runs:
        for count in ("forward_flops", "backward_flops"):
            of_ranks, of_model = [getattr(one, count)(SIGHT) for one in ops], getattr(op, count)(SIGHT)
            if not divided:
                assert set(of_ranks) == {of_model}, (whole.path, count)
            elif not copies:
                assert sum(of_ranks) == of_model, (whole.path, count)
    if "cache_bits" in op.effects:
        kept, of_model = [one.cache_bits(SIGHT, 16) for one in ops], op.cache_bits(SIGHT, 16)
        assert (
            copies
            or (copied and op.effects == {"cache_bits"})
            or sum(kept) == of_model
            or (not divided and set(kept) == {of_model})
        ), whole.path


def _has_copies(shape: Any) -> bool:
    """Whether several ranks have the same key and value heads, because there are fewer of them than ranks."""
    return any(isinstance(axis, Shard) and axis.size * axis.degree > axis.whole for axis in axes_of(shape))


def _check_tensor(path: str, whole: tuple[int, ...], ranks: list[tuple[int, ...]], copies: bool) -> None:
    """One parameter: whole on all ranks, or divided along one of its sides."""
    differ = [i for i, n in enumerate(whole) if {shape[i] for shape in ranks} != {n}]
    assert len(differ) <= 1, path
    for side in differ:
        assert copies or sum(shape[side] for shape in ranks) == whole[side], path


REFUSED = {
    "DifferentialAttention-0", "DifferentialAttention-1",  # halves of the value heads are on different ranks
    "MixtureOfAttention-0", "MixtureOfAttention-1",  # a token's heads are those of its experts
    "DynamicMaskAttention-0", "DynamicMaskAttention-1", "DynamicMaskAttention-2",  # the values of all heads are summed
    "Mamba-4",  # channels as rows of heads
    "Attention-10",  # a block indexer whose heads are not divided
}  # fmt: skip
"""Examples that have a reason of their own not to be divided, besides sizes."""


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rank_of_a_part_computes_its_share(name: str, tp: int) -> None:
    try:
        check(around_a_model(EXAMPLES[name]), Layout(tp=tp))
    except InputError as error:
        text = str(error)
        assert text.startswith((f"--tp {tp}: ", "--sequence-parallel: ")), text
        assert "; expected " in text
        assert "does not divide" in text or "--sequence-parallel" in text or name in REFUSED, text
    else:
        assert name not in REFUSED


@pytest.mark.parametrize("tp", [2, 4])
def test_a_rank_of_a_preset_computes_its_share(tp: int) -> None:
    """Layers of all sizes that people published. What is refused has sizes that tp does not divide."""
    refused = 0
    for name in model_names():
        try:
            check(load_preset(name).model, Layout(tp=tp))
        except InputError as error:
            assert "; expected " in str(error), name
            refused += 1
    assert refused < 100
