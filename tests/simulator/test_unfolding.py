"""A run of many layers, unfolded from the events of a run of few, is the run of all of them.

It is so to the byte, at every place and on the caching allocator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

import llmcalc
from llmcalc.device_memory import device_memory
from llmcalc.device_memory.cuda_runtime import CudaRuntime
from llmcalc.device_memory.inference import InferenceConfig, record_inference, replay_inference
from llmcalc.device_memory.linear_in_layers import node_path
from llmcalc.device_memory.training import TrainingConfig, TrainingRun, record_training, replay
from llmcalc.model import ModelSpec
from llmcalc.simulator.adapters import Adapters
from llmcalc.simulator.caching_allocator import CachingAllocator
from llmcalc.simulator.event_log import (
    FREE_EVENT,
    RENAME_EVENT,
    Event,
    RecordedEvents,
    is_repeatable,
    is_self_contained,
)
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.layer_pattern import RECORDED_REPEATS
from llmcalc.simulator.layer_stacks import layer_stacks
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.repeat_layers import AllocatorOverhead, NotRepeatingError, RepeatAnalysis
from llmcalc.simulator.tensor import FLOAT32
from llmcalc.workload.fake_quantization import FakeQuantizationOptions
from llmcalc.workload.recompute import parse_recompute
from tests.device_memory import training_memory as answer
from tests.device_memory.training_memory import training_memory
from tests.simulator.allocator_witness import Several, WitnessAllocator

WORKSPACE = 1 << 20

MODELS = {
    "dense": "smollm2-135m?num_hidden_layers=11",
    "learned positions": "gpt2",
    "experts": "olmoe-1b-7b?num_hidden_layers=8",
    "windows": "gpt-oss-20b?num_hidden_layers=12",
    "encoder-decoder": "flan-t5-small",
}
"""`windows` has a pattern of two layers."""

PLAIN = TrainingConfig(batch=2, seq=32, has_master_weights=True)

WAYS = {
    "full": replace(PLAIN, recompute=parse_recompute("full")),
    "matmuls kept": replace(PLAIN, recompute=parse_recompute("attention+matmuls"), optimizer="adamw-8bit"),
    "every other": replace(PLAIN, recompute=parse_recompute("every:2")),
    "accumulated": replace(PLAIN, microbatches=3, optimizer="adafactor"),
    "zeros": replace(PLAIN, keeps_gradients=True, optimizer="sgd", has_momentum=True),
    "sums": replace(PLAIN, gradient_dtype=FLOAT32, optimizer="adafactor", implementation="foreach"),
    "muon": TrainingConfig(seq=32, dtype="float32", autocast=True, optimizer="muon"),
    "adapters": TrainingConfig(seq=32, adapters=Adapters(4, ("q_proj", "v_proj")), implementation="loop"),
    "updated early": TrainingConfig(seq=32, optimizer_in_backward=True, implementation="fused"),
    "rounded operands": replace(
        PLAIN, kernel_choices=KernelChoices(fake_quantization=FakeQuantizationOptions(64)), microbatches=3
    ),
    "offloaded": TrainingConfig(seq=512, offloads_activations=True, kernel_choices=KernelChoices("flash", "fused")),
}

PASSES = {
    "prompt and a step": InferenceConfig(batch=2, seq=32),
    "chunks": InferenceConfig(seq=64, chunk_tokens=8),
    "a step": InferenceConfig(
        phase="decode", seq=32, has_paged_cache=True, kernel_choices=KernelChoices("flash", "fused")
    ),
}


def unfolding(spec: ModelSpec, config: TrainingConfig | InferenceConfig) -> RepeatAnalysis:
    stacks = layer_stacks(spec, config.recompute.every if isinstance(config, TrainingConfig) else 1)
    grow = [i for i, loop in enumerate(stacks) if loop.repeat_count > RECORDED_REPEATS]
    assert grow
    few = {i: stacks[i].repeats_of_layer_types(RECORDED_REPEATS) for i in grow}
    if isinstance(config, TrainingConfig):
        return RepeatAnalysis(record_training(spec, config, few, WORKSPACE), stacks, grow)
    return RepeatAnalysis(record_inference(spec, config, few, WORKSPACE), stacks, grow)


def is_the_run_of_all_layers(
    spec: ModelSpec, config: TrainingConfig | InferenceConfig, expandable: bool = False
) -> None:
    device, whole_device = CachingAllocator(expandable), WitnessAllocator(expandable)
    unfolded = unfolding(spec, config)
    found, blocks = unfolded.count_bytes({}), unfolded.allocator_overhead(device, {})
    if isinstance(config, TrainingConfig):
        whole = replay(spec, config, whole_device, None, WORKSPACE)
    else:
        whole = replay_inference(spec, config, whole_device, None, WORKSPACE)
    assert list(found.peaks) == list(whole.peaks)
    for place, peak in found.peaks.items():
        assert (peak.bytes, peak.bytes_of_all_kinds) == (
            whole.peaks[place].bytes,
            whole.peaks[place].bytes_of_all_kinds,
        ), place
    assert (found.set_up_bytes, found.final_bytes) == (whole.set_up_bytes, whole.final_bytes)
    assert (blocks.rounding_bytes, blocks.rounding_bytes_after) == (whole.rounding_bytes, whole.rounding_bytes_after)
    assert blocks.requested_bytes + blocks.rounding_bytes + blocks.free_bytes == whole.reserved_bytes
    assert blocks.requested_bytes == whole_device.peak_requested
    for name in ("peak_allocated", "peak_reserved"):
        assert getattr(device, name) == getattr(whole_device, name), name


@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])
@pytest.mark.parametrize("model", MODELS.values(), ids=list(MODELS))
def test_training(model: str, expandable: bool) -> None:
    is_the_run_of_all_layers(llmcalc.load(model).model, PLAIN, expandable)


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_every_way_of_training(way: TrainingConfig) -> None:
    is_the_run_of_all_layers(llmcalc.load(MODELS["dense"]).model, way)


@pytest.mark.parametrize("inference", PASSES.values(), ids=list(PASSES))
@pytest.mark.parametrize("model", ["dense", "windows", "encoder-decoder"])
def test_passes_without_gradients(model: str, inference: InferenceConfig) -> None:
    if model != "dense":
        inference = replace(inference, kernel_choices=KernelChoices())  # flash attention takes no bias and no sinks
    is_the_run_of_all_layers(llmcalc.load(MODELS[model]).model, inference)


# --- layers that differ -----------------------------------------------------------------------------------------------


def tampered(recorded: RecordedEvents, before: Event, after: Event) -> RecordedEvents:
    def changed(piece: Sequence[Event]) -> list[Event]:
        return [after if event == before else event for event in piece]

    passes = changed(recorded.first_step[1])
    first, then = [*recorded.first_step], [*recorded.reported_step]
    first[1], then[1] = passes, passes
    return replace(recorded, first_step=first, reported_step=then)


def test_repeats_that_differ_are_found() -> None:
    spec = llmcalc.load(MODELS["dense"]).model
    stacks = layer_stacks(spec)
    recorded = record_training(spec, PLAIN, {0: RECORDED_REPEATS})
    RepeatAnalysis(recorded, stacks, [0])
    tensors = [event for event in recorded.first_step[1] if event[1] > 0]
    event = tensors[len(tensors) // 4]  # half-way through the forward pass, one byte more
    with pytest.raises(NotRepeatingError):
        RepeatAnalysis(tampered(recorded, event, (event[0], event[1] + 1, event[2])), stacks, [0])
    with pytest.raises(
        NotRepeatingError
    ):  # one layer of two is computed again, and a pattern of one layer does not say so
        RepeatAnalysis(record_training(spec, WAYS["every other"], {0: RECORDED_REPEATS}), stacks, [0])


def test_a_name_for_a_storage_of_a_repeat_is_found() -> None:
    """Every repeat has such a storage, and the event says nothing of those of further repeats."""
    spec = llmcalc.load(MODELS["dense"]).model
    stacks = layer_stacks(spec)
    recorded = record_training(spec, PLAIN, {0: RECORDED_REPEATS})
    inner = min(RepeatAnalysis(recorded, stacks, [0]).counterparts)
    batch, *others = recorded.reported_step
    named = replace(recorded, reported_step=[[*batch, (inner, RENAME_EVENT, inner)], *others])
    with pytest.raises(NotRepeatingError):
        RepeatAnalysis(named, stacks, [0])


WAITING = replace(PLAIN, seq=512, offloads_activations=True, recompute=parse_recompute("full"))
"""Of the last five tensors that were saved, those that are moved stay: here those of more than four layers."""


def test_where_repeats_differ_all_layers_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, runtime, device = llmcalc.load(MODELS["dense"]).model, CudaRuntime(WORKSPACE), WitnessAllocator()
    with pytest.raises(NotRepeatingError):
        unfolding(spec, WAITING)
    asked: list[Mapping[int, int]] = []

    def noted(spec: ModelSpec, training: TrainingConfig, layers: Mapping[int, int], workspace: int) -> RecordedEvents:
        asked.append(layers)
        return record_training(spec, training, layers, workspace)

    monkeypatch.setattr(answer, "record_training", noted)
    found, whole = training_memory(spec, WAITING, runtime), replay(spec, WAITING, device, None, WORKSPACE)
    assert asked == [{0: RECORDED_REPEATS}, {}]
    assert (found.peak_bytes, found.reserved_bytes) == (device.peak_allocated, device.peak_reserved)
    assert found.after_step_bytes == whole.final_bytes + whole.rounding_bytes_after
    assert {(point.phase, point.module_path): point.bytes for point in found.timeline} == {
        (place.phase, node_path(place, layer_stacks(spec))): peak.bytes
        for place, peak in whole.peaks.items()
        if peak.bytes
    }


# --- one pass for two steps -------------------------------------------------------------------------------------------


def made(*numbers: int) -> list[Event]:
    return [(x, 512, "temporary") for x in numbers]


def freed(*numbers: int) -> list[Event]:
    return [(x, FREE_EVENT, None) for x in numbers]


def test_passes_repeat_if_only_gradients_and_tokens_outlive_them() -> None:
    tokens, again = made(0), [*made(9), *freed(0)]
    assert is_repeatable(tokens, [*made(1, 2), *freed(1)], freed(2), again)
    assert not is_repeatable(tokens, [*made(1, 2, 3), *freed(1)], freed(2), again)  # 3 stays
    assert not is_repeatable(tokens, [*made(1, 2), *freed(1, 7)], freed(2), again)  # 7 was there before
    assert not is_repeatable(tokens, [*made(1, 2), *freed(1)], freed(2), [(9, 1024, "temporary"), *freed(0)])
    assert is_self_contained([*made(1, 2), *freed(2, 1)])
    assert not is_self_contained([*made(1, 2), *freed(2)])


def test_the_passes_of_both_steps_are_recorded_once_where_they_are_alike() -> None:
    spec = llmcalc.load(MODELS["dense"]).model
    once, twice = (record_training(spec, training, {0: RECORDED_REPEATS}) for training in (PLAIN, WAYS["zeros"]))
    assert once.first_step[1] is once.reported_step[1]
    assert (len(twice.first_step), len(twice.reported_step)) == (1, 1)
    assert twice.first_step[0] is not twice.reported_step[0]


# --- many layers ------------------------------------------------------------------------------------------------------

ACCUMULATED = replace(PLAIN, microbatches=4)
FUSED = TrainingConfig(batch=4, seq=2048, kernel_choices=KernelChoices("flash", "fused"), optimizer="adamw-8bit")
BOTH = (False, True)

DEEP = [
    *((f"smollm2-135m?num_hidden_layers={layers}", PLAIN, BOTH) for layers in (9, 40, 130)),
    ("olmoe-1b-7b?num_hidden_layers=12", PLAIN, BOTH),
    ("gpt-oss-20b?num_hidden_layers=24", PLAIN, BOTH),
    ("qwen3-0.6b?num_hidden_layers=28", WAYS["full"], BOTH),
    ("gpt2?num_hidden_layers=10", ACCUMULATED, BOTH),
    ("qwen3-235b-a22b?num_hidden_layers=47", FUSED, BOTH),
]
"""Models of many layers, how they are trained, and whether their segments are expandable."""

DEEPER = [
    ("olmoe-1b-7b?num_hidden_layers=70", PLAIN, BOTH),
    ("gpt-oss-20b?num_hidden_layers=66", PLAIN, BOTH),
    *((f"qwen3-0.6b?num_hidden_layers={layers}", WAYS["full"], BOTH) for layers in (61, 100)),
    ("gpt2?num_hidden_layers=65", ACCUMULATED, BOTH),
    ("llama3.1-405b", TrainingConfig(seq=8192, has_master_weights=True), BOTH),
    ("llama3-70b", TrainingConfig(batch=2, seq=2048, recompute=parse_recompute("full")), BOTH),
    ("qwen3-235b-a22b", FUSED, BOTH),
    ("smollm2-135m?num_hidden_layers=300", PLAIN, (True,)),
    ("smollm2-135m?num_hidden_layers=1000", PLAIN, (False,)),  # the most that are all replayed, for one allocator
]
"""The same ways of training at larger depths."""


@pytest.mark.parametrize(
    ("name", "training", "expandable"),
    [*DEEP, *(pytest.param(*deeper, marks=pytest.mark.exhaustive) for deeper in DEEPER)],
)
def test_blocks_and_segments_are_those_of_a_replay_of_all_layers(
    name: str, training: TrainingConfig, expandable: tuple[bool, ...]
) -> None:
    spec, witnesses = llmcalc.load(name).model, [WitnessAllocator(segments) for segments in expandable]
    meter = Meter(Several(witnesses))
    run = TrainingRun(spec, training, None, WORKSPACE, meter)
    run.set_up()
    for _ in range(2):
        run.step()
    for witness in witnesses:
        runtime = CudaRuntime(WORKSPACE, has_expandable_segments=witness.expandable_segments)
        found = training_memory(spec, training, runtime)
        assert (found.peak_bytes, found.reserved_bytes) == (witness.peak_allocated, witness.peak_reserved)
        assert found.after_step_bytes == witness.allocated
        assert next(term for term in found.terms if term.name == "rounding to blocks").status == "source"


@pytest.mark.parametrize(("missing", "slop"), [(0, 130), (1, 145), (4, 190), (200, 3130)])
def test_the_allocators_bytes_grow_by_the_same_for_each_layer(missing: int, slop: int) -> None:
    """Two more layers had 30 bytes more. Where more layers had fewer bytes, none are below 0."""
    overhead = AllocatorOverhead(1000, 100, 50, 7).extrapolate(AllocatorOverhead(1200, 130, 40, 7), missing, 2)
    assert overhead == AllocatorOverhead(1200 + 100 * missing, slop, max(0, 40 - 5 * missing), 7)


def test_of_more_layers_what_the_allocator_adds_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors are exact; blocks and segments are within 1 %, and the answer says that they are an estimate. Here from a
    tenth of the layers from which it is so, which takes a tenth of the time.
    """
    monkeypatch.setattr(device_memory, "MAX_REPLAYED_LAYERS", device_memory.MAX_REPLAYED_LAYERS // 10)
    monkeypatch.setattr(
        device_memory, "LAYERS_OF_SHORTER_RUNS", tuple(n // 10 for n in device_memory.LAYERS_OF_SHORTER_RUNS)
    )
    spec = llmcalc.load("smollm2-135m?num_hidden_layers=110").model
    found, witness = training_memory(spec, PLAIN, CudaRuntime(WORKSPACE)), WitnessAllocator()
    whole = replay(spec, PLAIN, witness, None, WORKSPACE)
    assert found.exact_bytes == whole.peak[1].bytes - 2 * WORKSPACE
    assert found.peak_bytes == pytest.approx(witness.peak_allocated, rel=0.01)
    assert found.reserved_bytes == pytest.approx(witness.peak_reserved, rel=0.01)
    term = next(term for term in found.terms if term.name == "rounding to blocks")
    assert (term.status, "extrapolated" in term.witness) == ("estimate", True)
