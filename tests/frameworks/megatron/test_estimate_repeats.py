"""Four repeats of layers, read from a run of three, have the bytes of a run of four."""

from __future__ import annotations

import pytest

import llmcalc
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.megatron.estimate import StageRun, measure_passes
from llmcalc.parallel.layout import Layout, stages
from llmcalc.simulator.layer_stacks import LayerStack
from llmcalc.simulator.meter import AllocationPlace
from llmcalc.simulator.module_visits import (
    ModuleVisit,
    PassVisits,
    backward_with_repeat,
    backward_without_repeat,
    forward_with_repeat,
    forward_without_repeat,
)
from llmcalc.simulator.simulated_work import SIMULATED_WORK

CASES = {
    "dense": ("llama3.2-1b", None, Layout(), 0),
    "experts after a dense layer": ("deepseek-v2-lite", None, Layout(), 0),
    "experts, all recomputed, between others": ("qwen3-30b-a3b", "full", Layout(pp=3), 1),
    "a pattern of four layers": ("qwen3-next-80b-a3b", None, Layout(tp=2, sequence_parallel=True), 0),
}


@pytest.mark.parametrize("case", CASES)
def test_four_repeats_are_three_with_one_more(case: str) -> None:
    """Bytes, peaks of every module, and the counted work equal those of runs of four and of three repeats."""
    model, recompute, layout, stage_number = CASES[case]
    spec = llmcalc.load(model).model
    estimate = memory(spec, Settings(phase="training", seq=512, recompute=recompute))
    stage = list(stages(layout, spec.main.num_hidden_layers))[stage_number]
    units_before = SIMULATED_WORK.units
    short_run = StageRun(estimate, layout, stage, 3)
    short_run.measure_micro_batch(3)
    derived_passes = short_run.bytes_with_added_repeat()
    counted_units, units_before = SIMULATED_WORK.units - units_before, SIMULATED_WORK.units
    long_run = StageRun(estimate, layout, stage, 4)
    four_repeats = long_run.measure_micro_batch(4)
    if not long_run.stage_layers.has_one_layer_kind:
        long_run = StageRun(estimate, layout, stage, 3)
    assert derived_passes == [four_repeats, long_run.measure_micro_batch(3)]
    assert counted_units == SIMULATED_WORK.units - units_before > 0


@pytest.mark.parametrize("case", ["dense", "experts after a dense layer"])
def test_repeats_that_differ_all_run(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """With the same bytes and the same counted work."""
    model, recompute, layout, stage_number = CASES[case]
    spec = llmcalc.load(model).model
    estimate = memory(spec, Settings(phase="training", seq=512, recompute=recompute))
    stage = list(stages(layout, spec.main.num_hidden_layers))[stage_number]
    measured, units = [], []
    for derives in (True, False):
        units_before = SIMULATED_WORK.units
        if not derives:
            monkeypatch.setattr(StageRun, "bytes_with_added_repeat", lambda _: None)
        measured.append(measure_passes(estimate, layout, stage, [4, 3]))
        units.append(SIMULATED_WORK.units - units_before)
    assert measured[0] == measured[1]
    assert units[0] == units[1]


def visits(*layers_and_bytes: tuple[int, int]) -> PassVisits:
    """A pass with a visit of each of these layers, with its peak bytes."""
    return PassVisits(
        [
            ModuleVisit(AllocationPlace("forward", layer, "layers"), peak, 7 * i)
            for i, (layer, peak) in enumerate(layers_and_bytes)
        ],
        7 * len(layers_and_bytes),
    )


STACK = LayerStack("layers", layers_before=2, layer_period=1, repeat_count=9)


def test_a_repeat_that_differs_is_not_left_out() -> None:
    """A layer that saves other bytes, and layers out of their turn."""
    forward = [(-1, 5), (2, 10), (3, 20), (4, 30), (5, 40), (-1, 45)]
    shorter_pass, saved_bytes = forward_without_repeat(visits(*forward), STACK) or (None, 0)
    assert (shorter_pass, saved_bytes) == (
        PassVisits(
            [
                visit._replace(work_units_before=7 * i)
                for i, visit in enumerate(visits((-1, 5), (2, 10), (3, 20), (5, 30), (-1, 35)).visits)
            ],
            35,
        ),
        10,
    )
    for index, changed_visit in ((3, (4, 31)), (4, (5, 41)), (2, (3, 21)), (5, (2, 45))):
        assert forward_without_repeat(visits(*forward[:index], changed_visit, *forward[index + 1 :]), STACK) is None
    backward = [(-1, 45), (5, 40), (4, 30), (3, 20), (2, 12), (-1, 1)]
    shorter_backward = backward_without_repeat(visits(*backward), STACK, 10)
    assert shorter_backward is not None
    assert [visit.peak_bytes for visit in shorter_backward.visits] == [35, 30, 20, 12, 1]
    assert backward_without_repeat(visits(*backward), STACK, 11) is None
    assert backward_without_repeat(visits(*backward[:2], (4, 31), *backward[3:]), STACK, 10) is None


def test_a_repeat_that_differs_is_not_added() -> None:
    """The third repeat in the forward pass, and the first one in the backward pass."""
    forward = [(-1, 5), (2, 10), (3, 20), (4, 30), (-1, 35)]
    assert forward_with_repeat(visits(*forward), STACK) == (
        PassVisits(
            [
                visit._replace(work_units_before=7 * i)
                for i, visit in enumerate(visits((-1, 5), (2, 10), (3, 20), (3, 30), (4, 40), (-1, 45)).visits)
            ],
            42,
        ),
        10,
    )
    for index, changed_visit in ((3, (5, 30)), (2, (4, 20)), (4, (2, 35))):
        assert forward_with_repeat(visits(*forward[:index], changed_visit, *forward[index + 1 :]), STACK) is None
    backward = [(-1, 45), (4, 30), (3, 20), (2, 10), (-1, 1)]
    longer_backward = backward_with_repeat(visits(*backward), STACK, 10)
    assert longer_backward is not None
    assert [visit.peak_bytes for visit in longer_backward.visits] == [55, 40, 30, 20, 10, 1]
    assert backward_with_repeat(visits(*backward), STACK, 11) is None
    assert backward_with_repeat(visits(*backward[:3], (2, 11), *backward[4:]), STACK, 10) is None
