"""A rank of a pipeline under FSDP2 holds what torch's own schedule of wrapped stages does, in a fake process group."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import date, timedelta
from functools import cache
from typing import NamedTuple

import pytest

import llmcalc
from llmcalc.device_memory.cuda_runtime import HOPPER_RUNTIME
from llmcalc.device_memory.device_memory import MemoryTerm, summarize_memory
from llmcalc.device_memory.training import TrainingConfig
from llmcalc.errors import InputError
from llmcalc.frameworks.fsdp2.pipeline import (
    ENDS_REDUCTIONS_SINCE,
    FREES_GRADIENTS_SINCE,
    INFERS_ON_META_SINCE,
    NEWEST_SETTINGS,
    NO_OUTPUTS_SINCE,
    ONLY_LAST_OUTPUTS_SINCE,
    FsdpPipelineRun,
    FsdpRankSetup,
    ScheduleSettings,
    schedule_settings_at,
    stage_device_memory,
)
from llmcalc.frameworks.fsdp2.training import FsdpSettings
from llmcalc.frameworks.registry import layout_of
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.layout_request import LayoutRequest
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.meter import Meter
from llmcalc.workload.recompute import parse_recompute
from tests.comparisons import compares, under
from tests.frameworks.torch.piped import by_torch, replayed
from tests.rank_replays import replay_sharded_rank
from tests.simulator.allocator_witness import WitnessAllocator

WIDE, NARROW = FsdpSettings("float32", "float32"), FsdpSettings("bfloat16", "bfloat16", outer_groups="separate")


@cache
def small(layers: int) -> ModelSpec:
    """A small Llama."""
    sizes = {"hidden_size": 48, "intermediate_size": 80, "num_attention_heads": 4, "num_key_value_heads": 2}
    return llmcalc.load("llama3-8b", num_hidden_layers=layers, vocab_size=102, head_dim=12, **sizes).model


class Case(NamedTuple):
    """layers: of the model. microbatches: of a step. stage: the rank's stage in the pipeline."""

    layers: int
    layout: Layout
    microbatches: int
    stage: int
    fsdp: FsdpSettings = WIDE
    schedule_settings: ScheduleSettings = NEWEST_SETTINGS
    recompute: str = "none"

    def __str__(self) -> str:
        layout, reduction_format = self.layout.options(), self.fsdp.reduction_format
        words = f"{layout} stage {self.stage} of {self.microbatches} {reduction_format} {self.recompute}"
        return words.replace(" ", "-")


TWO = Layout(pp=2, dp=2, zero=3, reshard=False)

CASES = [
    Case(4, TWO, 4, 0),
    Case(4, TWO, 4, 1, recompute="full", schedule_settings=ScheduleSettings(returns_outputs=True)),
    Case(5, Layout(pp=3, dp=4, hsdp_replicas=2, zero=3, pp_layout=(1, 2, 2)), 5, 1, NARROW),
    Case(5, Layout(pp=3, dp=3, zero=3, reshard=False, pp_layout=(1, 2, 2)), 3, 2, NARROW),
    Case(4, Layout(pp=2, vpp=2, dp=2, zero=3, schedule="interleaved", reshard=False), 4, 1),
    Case(4, replace(TWO, tp=2, sequence_parallel=True), 4, 1, schedule_settings=ScheduleSettings(returns_outputs=True)),
    Case(
        4,
        Layout(pp=2, vpp=2, dp=2, tp=2, zero=3, schedule="interleaved", sequence_parallel=True, reshard=False),
        4,
        0,
        NARROW,
        recompute="full",
    ),
    Case(8, Layout(pp=2, vpp=4, dp=3, zero=3, schedule="interleaved", reshard=False), 4, 0, NARROW, recompute="full"),
]
"""One rank gathers four stages, of which three are whole at a time. With `reshard`, layers free their parameters after
each forward pass.
"""


@compares(lambda case: under("fsdp2", small(case.layers), "adamw"))
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_rank_holds_what_torch_does(case: Case) -> None:
    spec, layout = small(case.layers), case.layout
    training = TrainingConfig(
        batch=2,
        seq=8,
        microbatches=case.microbatches,
        implementation="foreach",
        recompute=parse_recompute(case.recompute),
    )
    run = spec, training, layout, layout.rank(pp=case.stage), case.fsdp, case.schedule_settings
    assert replayed(*run) == by_torch(*run)


def test_whole_parameters_and_gradients_wait_for_the_last_micro_batch() -> None:
    """Of a middle stage with 2 layers: parameters in bf16, and sums of their gradients in fp32, on every rank."""
    spec, layout = small(6), Layout(pp=3, dp=8, zero=3, reshard=False)
    layer = 48 * (48 + 24 + 24 + 48) + 3 * 48 * 80 + 2 * 48
    training = TrainingConfig(batch=1, seq=4, microbatches=6)
    meter = Meter()
    run = FsdpPipelineRun(FsdpRankSetup(spec, training, layout, layout.rank(pp=1)), meter)
    run.set_up()
    run._allocate_step_tokens()
    chunk = run.chunks[0]
    before = meter.live_bytes
    chunk.forward_one_chunk(0)
    chunk.backward_one_chunk(0, None)
    assert meter.live_bytes - before == 2 * layer * (2 + 4)


def test_a_step_of_several_schedules_adds_up_shards() -> None:
    """The second schedule of a step finds the gradients of the first, which stay sharded."""
    training = TrainingConfig(batch=1, seq=4, microbatches=8)
    one, two = (
        replay_sharded_rank(small(4), training, TWO, 0, schedule_settings=ScheduleSettings(schedules_per_step=n))
        for n in (1, 2)
    )
    assert (
        one.final_bytes - one.set_up_bytes > two.final_bytes - two.set_up_bytes
    )  # tokens and buffers of 4 micro-batches less
    assert two.peak[1].bytes < one.peak[1].bytes + one.set_up_bytes


@pytest.mark.parametrize(
    "layout", [TWO, Layout(pp=2, vpp=2, dp=2, tp=2, zero=3, schedule="interleaved")], ids=Layout.options
)
def test_many_layers_from_few(layout: Layout) -> None:
    """Of 24 layers, 4 of every stage are recorded; the allocator finds what it does when all are replayed."""
    spec = small(24)
    training = TrainingConfig(batch=1, seq=64, microbatches=4, recompute=parse_recompute("full"))
    tensors = MemoryTerm("tensors", 0, "exact", "")
    for expandable in (False, True):
        runtime = replace(HOPPER_RUNTIME, has_expandable_segments=expandable)
        replay_result = replay_sharded_rank(
            spec, training, layout, 1, WitnessAllocator(expandable), runtime.workspace_bytes
        )
        whole = summarize_memory(replay_result, runtime.context_bytes, layer_stacks(spec), tensors)
        assert (
            stage_device_memory(FsdpRankSetup(spec, training, layout, 1, runtime.workspace_bytes), runtime, tensors)
            == whole
        )


def test_layers_of_a_pipeline_stay_whole_unless_asked() -> None:
    assert not layout_of(LayoutRequest(fsdp=4, pp=2)).reshard
    assert layout_of(LayoutRequest(fsdp=4, pp=2, reshard=True)).reshard
    assert layout_of(LayoutRequest(fsdp=4)).reshard


def test_outputs_are_returned_before_a_date() -> None:
    day = NO_OUTPUTS_SINCE.replace(day=21)
    assert schedule_settings_at(day).returns_outputs
    assert not schedule_settings_at(NO_OUTPUTS_SINCE).returns_outputs
    assert schedule_settings_at(None) == NEWEST_SETTINGS


@pytest.mark.parametrize(
    ("day", "words"),
    [
        (ONLY_LAST_OUTPUTS_SINCE, {"keeps_outputs"}),
        (FREES_GRADIENTS_SINCE, {"keeps_gradients"}),
        (ENDS_REDUCTIONS_SINCE, {"ends_reductions"}),
        (INFERS_ON_META_SINCE, {"infers_shapes"}),
    ],
)
def test_what_torch_frees_since_a_date(day: date, words: set[str]) -> None:
    before, since = schedule_settings_at(day - timedelta(days=1)), schedule_settings_at(day)
    assert {
        field.name for field in fields(ScheduleSettings) if getattr(before, field.name) != getattr(since, field.name)
    } == words


def _run_forward(schedule_settings: ScheduleSettings, stage: int) -> tuple[int, int]:
    """Bytes after the passes of a step of 4 micro-batches, and after the step."""
    training = TrainingConfig(batch=2, seq=8, microbatches=4)
    setup = FsdpRankSetup(small(4), training, TWO, TWO.rank(pp=stage), schedule_settings=schedule_settings)
    run = FsdpPipelineRun(setup, meter := Meter())
    run.set_up()
    run.run_passes()
    passes = meter.live_bytes
    run.update()
    run.zero_grad()
    return passes, meter.live_bytes


def test_what_older_torch_kept_from_one_schedule_to_the_next() -> None:
    """In bf16, of 4 micro-batches: the outputs of the first stage, and the gradients of what the last one received.
    In fp32 the whole gradients of the layer whose sum came last.
    """
    sent, layer = 2 * 8 * 48 * 2, 48 * (48 + 24 + 24 + 48) + 3 * 48 * 80 + 2 * 48
    is_2024_form = ScheduleSettings(returns_outputs=True, keeps_outputs=True, keeps_gradients=True)
    for stage in (0, 1):
        after, later = (
            _run_forward(schedule_settings, stage)
            for schedule_settings in (ScheduleSettings(returns_outputs=True), is_2024_form)
        )
        assert later[0] - after[0] == 4 * sent
    assert (
        _run_forward(replace(is_2024_form, ends_reductions=False), 1)[1] - _run_forward(is_2024_form, 1)[1] == 4 * layer
    )


def test_shapes_were_learnt_from_a_forward_pass() -> None:
    """It gathers the first stage, in bf16, and leaves nothing else."""
    training = TrainingConfig(batch=2, seq=8, microbatches=4)
    table, layer = 102 * 48, 48 * (48 + 24 + 24 + 48) + 3 * 48 * 80 + 2 * 48
    held: list[int] = []
    for infers in (False, True):
        setup = FsdpRankSetup(small(4), training, TWO, 0, schedule_settings=ScheduleSettings(infers_shapes=infers))
        run = FsdpPipelineRun(setup, meter := Meter())
        run.set_up()
        run._allocate_step_tokens()
        held.append(meter.live_bytes)
        assert (meter.peak_bytes > meter.live_bytes) == infers
        run.run_passes()
        held.append(meter.live_bytes)
    assert held[2] - held[0] == 2 * (table + 2 * layer)
    assert held[3] == held[1]


@pytest.mark.parametrize(
    ("layout", "microbatches", "message"),
    [
        (Layout(pp=2, dp=2, zero=3, schedule="zb-h1"), 4, "--schedule zb-h1: with FSDP2 it is not modelled"),
        (TWO, 1, "--num-microbatches: 1; a pipeline of 2 stages takes at least 2"),
    ],
)
def test_what_is_refused(layout: Layout, microbatches: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        replay_sharded_rank(small(4), TrainingConfig(batch=1, seq=4, microbatches=microbatches), layout, 0)
    assert message in str(error.value)
