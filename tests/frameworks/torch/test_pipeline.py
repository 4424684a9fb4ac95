"""A rank of a pipeline, and the walk without an allocator that plans read."""

from __future__ import annotations

from typing import Any

import pytest

import llmcalc
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.device_memory.training import TrainingConfig, replay
from llmcalc.errors import InputError
from llmcalc.frameworks.peak_estimate import BytesPerParameter, PeakEstimate
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.registry import framework as framework_named
from llmcalc.frameworks.torch.pass_measurement import make_pass_measurement
from llmcalc.parallel.layout import Layout, stages
from llmcalc.simulator.tensor import DTYPES
from tests.comparisons import compares, under
from tests.rank_replays import replay_rank
from tests.samples import sampled, spread

SPEC = llmcalc.load("smollm2-135m", num_hidden_layers=8).model

HOW = TrainingConfig(batch=1, seq=64, microbatches=6)


def test_one_rank_holds_what_a_device_does() -> None:
    alone, rank = replay(SPEC, HOW), replay_rank(SPEC, HOW, Layout(), 0)
    assert (rank.set_up_bytes, rank.final_bytes, rank.peak[1].bytes) == (
        alone.set_up_bytes,
        alone.final_bytes,
        alone.peak[1].bytes,
    )


@compares(lambda: under("torch", SPEC, HOW.optimizer), torch=False)
def test_stages_together_hold_the_model_and_a_copy_of_the_tied_table() -> None:
    layout = Layout(pp=4)
    ranks = [replay_rank(SPEC, HOW, layout, rank) for rank in range(4)]
    table = 2 * SPEC.vocab_size * SPEC.hidden_size
    assert sum(rank.set_up_bytes for rank in ranks) == replay(SPEC, HOW).set_up_bytes + table


def test_earlier_stages_have_more_in_flight() -> None:
    """min(pp − rank, micro-batches) at the end of a forward pass; stages 1 and 2 have equal layers."""
    found = [replay_rank(SPEC, HOW, Layout(pp=4), rank) for rank in (1, 2)]
    kept = [
        max(peak.by_kind["activations"] for place, peak in one.peaks.items() if place.phase == "backward")
        for one in found
    ]
    assert kept[0] * 2 == pytest.approx(kept[1] * 3, rel=1e-3)  # beside the tokens of one batch


@pytest.mark.parametrize(
    "layout",
    [
        Layout(),
        Layout(tp=3),
        Layout(pp=2),
        Layout(pp=4),
        Layout(pp=2, vpp=2, schedule="interleaved"),
        Layout(pp=2, tp=3, pp_layout=(3, 5)),
    ],
    ids=Layout.options,
)
def test_a_walk_finds_the_peak_of_the_worst_rank(layout: Layout) -> None:
    """Of weights, gradients and states in bf16; optimizer steps, which a walk leaves out, are lower.

    It leaves out what a pipeline receives into for micro-batches that are not in flight.
    """
    walk = PeakEstimate(SPEC, BytesPerParameter(2, 2, 4), make_pass_measurement(SPEC, HOW))
    replays = [replay_rank(SPEC, HOW, layout, layout.rank(pp=stage)) for stage in range(layout.pp)]
    most = max(peak.bytes for found in replays for place, peak in found.peaks.items() if place.phase != "step")
    assert walk.largest_rank_bytes(layout, HOW.microbatches) == pytest.approx(most, rel=0.003)


@pytest.mark.parametrize("name", ["granite-4.0-h-tiny", "nemotron-h-8b", "t5-small"])
def test_a_walk_of_layers_that_differ_finds_the_peak_too(name: str) -> None:
    """Layers of other kinds below and above those that repeat; an encoder and a decoder."""
    spec = llmcalc.load(name).model
    walk = PeakEstimate(spec, BytesPerParameter(2, 2, 4), make_pass_measurement(spec, HOW))
    found = replay_rank(spec, HOW, Layout(), 0)
    most = max(peak.bytes for place, peak in found.peaks.items() if place.phase != "step")
    assert walk.largest_rank_bytes(Layout(), HOW.microbatches) == pytest.approx(most, rel=0.003)


def test_a_walk_of_dualpipe_has_both_stages_of_a_rank() -> None:
    """Two ranks, four micro-batches: each rank has two in flight in the first stage of the half that enters at it, and
    one of the other half in the last stage, before its first backward pass.
    """
    layout = Layout(pp=2, schedule="dualpipe")
    walk = PeakEstimate(SPEC, BytesPerParameter(2, 2, 4), make_pass_measurement(SPEC, HOW))
    rank_stages = list(stages(layout, 8))
    first, last = (walk.micro_batch_bytes(layout, stage) for stage in rank_stages)
    saved_bytes = 2 * first.saved_bytes + last.saved_bytes
    forward_peaks = [max(batch.layer_forward_peak, batch.loss_peak) for batch in (first, last)]
    backward_peaks = [
        max(batch.layer_backward_peak, batch.head_backward_peak, batch.backward_peak_outside_modules)
        for batch in (first, last)
    ]
    peaks = map(max, forward_peaks, backward_peaks)
    temporary = max(peak - batch.saved_bytes for peak, batch in zip(peaks, (first, last), strict=True))
    assert (
        walk.largest_rank_bytes(layout, 4)
        == sum(walk.static_bytes(layout, stage) for stage in rank_stages) + saved_bytes + temporary
    )


ADAPTERS: dict[str, Any] = {"lora_rank": 8, "lora_targets": ("all-linear",), "master_weights": None}
WALKED = [
    ("torch", Layout(dp=4), {}),
    ("torch", Layout(pp=2, dp=2), {"recompute": "full"}),
    ("torch", Layout(dp=2), {"optimizer": "adamw-8bit"}),
    ("torch", Layout(), {"optimizer": "sgd", "precision": "bf16"}),
    ("torch", Layout(), {"optimizer": "muon"}),
    ("torch", Layout(pp=2), {"optimizer": "adafactor"}),
    ("torch", Layout(dp=2), ADAPTERS),
    ("fsdp2", Layout(dp=4, zero=3), {}),
    ("fsdp2", Layout(dp=4, zero=3), ADAPTERS),
    ("fsdp2", Layout(dp=4, pp=2, zero=3), {}),
    ("fsdp2", Layout(dp=4, pp=2, zero=3, reshard=False), {"recompute": "full"}),
    ("megatron", Layout(dp=4, zero=1), {}),
    ("megatron", Layout(tp=2, pp=2, sequence_parallel=True), {"recompute": "full"}),
    ("deepspeed", Layout(dp=4, zero=1), {}),
    ("deepspeed", Layout(dp=4, zero=1), ADAPTERS),
    ("deepspeed", Layout(dp=4, zero=2), {}),
    ("deepspeed", Layout(dp=4, zero=3), {"recompute": "full"}),
    ("deepspeed", Layout(dp=4, zero=3), {"optimizer": "adafactor"}),
    ("deepspeed", Layout(dp=4, zero=3), {"optimizer": "adamw-8bit"}),
]


def causes_of_walk(case: tuple[str, Layout, dict[str, Any]]) -> set[Any]:
    """What a walk has rules for: the framework with each kind of shards, a pipeline, another optimizer, adapters,
    recomputation. The steps of each optimizer are compared in device_memory/test_optimizer_steps.py.
    """
    framework, layout, given = case
    return {(framework, layout.zero), (layout.pp > 1, layout.reshard), *given}


@pytest.mark.parametrize(
    ("framework", "layout", "given"),
    spread(sampled({f"{case[0]}-{number}": case for number, case in enumerate(WALKED)}, causes_of_walk)),
)
def test_a_walk_finds_the_tensors_of_a_replay(framework: Any, layout: Layout, given: dict[str, Any]) -> None:
    """Of the worst rank, with the optimizer's step, buckets and what is gathered."""
    spec = llmcalc.load("qwen3-0.6b", num_hidden_layers=8).model
    one = memory(spec, Settings("training", seq=256, num_microbatches=4, **given))
    walked = framework_named(framework).estimate(one).largest_rank_bytes(layout, 4)
    ranks = Cluster.with_framework(one, layout, framework).by_rank
    most = max(point.bytes for each in ranks for point in each.device.timeline)
    near = 0.05 if (framework, layout.zero) == ("deepspeed", 3) else 0.025
    assert walked - one.cuda_runtime.context_bytes == pytest.approx(most, rel=near)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 1), (2, 2), (4, 4)])
def test_gradients_come_while_activations_go(stages: int, micro_batches: int) -> None:
    """On a rank on which every micro-batch is in flight before its first backward pass. Of Muon's kinds of states the
    first and last stages have more.
    """
    spec, layout = llmcalc.load("llama3-8b", num_hidden_layers=8).model, Layout(pp=stages)
    one = memory(spec, Settings("training", seq=2048, num_microbatches=micro_batches, optimizer="muon"))
    walked = framework_named("torch").estimate(one).largest_rank_bytes(layout, micro_batches)
    timeline = [
        point for rank in Cluster.with_framework(one, layout, "torch").by_rank for point in rank.device.timeline
    ]
    assert walked - one.cuda_runtime.context_bytes == pytest.approx(max(point.bytes for point in timeline), rel=0.03)


@pytest.mark.parametrize(("seq", "given"), [(128, {}), (1024, ADAPTERS), (4096, {"recompute": "full"})])
def test_an_embedding_and_a_head_are_gathered_by_themselves(seq: int, given: dict[str, Any]) -> None:
    spec, layout = llmcalc.load("llama3-8b", num_hidden_layers=8).model, Layout(dp=8, zero=3)
    one = memory(spec, Settings("training", seq=seq, num_microbatches=4, **given))
    walked = framework_named("fsdp2").estimate(one).largest_rank_bytes(layout, 4)
    timeline = [
        point for rank in Cluster.with_framework(one, layout, "fsdp2").by_rank for point in rank.device.timeline
    ]
    assert walked - one.cuda_runtime.context_bytes == pytest.approx(max(point.bytes for point in timeline), rel=0.02)


def test_gradients_of_a_divided_embedding_are_whole_in_a_walk() -> None:
    spec, layout = llmcalc.load("qwen3-0.6b", num_hidden_layers=12).model, Layout(tp=2, pp=2)
    walk = framework_named("torch").estimate(memory(spec, Settings("training", seq=256)))
    first, last = (walk.micro_batch_bytes(layout, stage) for stage in stages(layout, 12))
    assert first.extra_gradient_elements == spec.vocab_size * spec.hidden_size // 2
    assert last.extra_gradient_elements == 0


def test_replicas_sum_gradients_in_buckets() -> None:
    one, two = (replay_rank(SPEC, HOW, Layout(dp=n), 0) for n in (1, 2))
    assert two.set_up_bytes - one.set_up_bytes == 2 * llmcalc.params(SPEC).total


def test_the_loss_of_a_model_without_a_head_is_one_number() -> None:
    """Its gradient is as large as the output, and nothing of it stays with further micro-batches but the number."""
    spec = llmcalc.load("all-minilm-l12-v2").model
    last = [replay_rank(spec, TrainingConfig(batch=1, seq=64, microbatches=n), Layout(pp=2), 1) for n in (4, 5)]
    tokens, received, width = 64 * 8, 2 * 64 * spec.hidden_size, DTYPES[HOW.dtype].bytes
    assert last[1].peak[1].bytes - last[0].peak[1].bytes == pytest.approx(received + tokens, abs=width * 2)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(dp=2, zero=1), "--zero 1: torch itself divides nothing"),
        (Layout(cp=2), "--cp 2: not in torch's own kernels"),
        (Layout(pp=2, schedule="zb-h1"), "--schedule zb-h1: in torch's own kernels it is not modelled"),
        (Layout(pp=2, schedule="dualpipe"), "--schedule dualpipe: in torch's own kernels it is not modelled"),
        (Layout(tp=2), "--tp 2: does not divide num_attention_heads 9; expected one of 1, 3"),
        (Layout(pp=3), "--pp 3: 3 stages do not divide 8 layers"),
    ],
)
def test_what_torch_has_not_is_refused(layout: Layout, message: str) -> None:
    with pytest.raises(InputError) as error:
        replay_rank(SPEC, HOW, layout, 0)
    assert message in str(error.value)


def test_a_stage_without_a_layer_that_runs_is_refused() -> None:
    """Layers of cross-attention run on the tokens of an image, which is not an input of the run."""
    with pytest.raises(InputError, match="no pass runs a layer of the stage of layers 3 to 3; expected fewer"):
        llmcalc.memory("llama3.2-11b-vision", phase="training", pp=40, framework="torch")
