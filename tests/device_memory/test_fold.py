"""A run of a few layers says what a run of all layers finds, at every place and by kind, to the byte."""

from __future__ import annotations

import pytest

import llmcalc
from llmcalc.device_memory.linear_in_layers import extrapolate_layers
from llmcalc.device_memory.training import TrainingConfig, replay
from llmcalc.flow.program import ModuleScope
from llmcalc.simulator.kernel_choices import KernelChoices
from llmcalc.simulator.layer_pattern import find_layer_pattern
from llmcalc.simulator.layer_stacks import LayerStack, layer_stacks
from llmcalc.workload.recompute import Recompute
from tests.device_memory.training_memory import training_memory

WAYS = {
    "plain": TrainingConfig(batch=2, seq=64),
    "recomputed": TrainingConfig(batch=1, seq=64, recompute=Recompute(layers=True)),
    "flash": TrainingConfig(batch=1, seq=64, kernel_choices=KernelChoices("flash", "fused"), optimizer="sgd"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["smollm2-135m", "gpt2", "qwen3-0.6b"])
def test_a_few_layers_say_what_all_do(name: str, way: str) -> None:
    spec, training = llmcalc.load(name).model, WAYS[way]
    stacks = layer_stacks(spec)
    assert all(loop.is_extrapolated for loop in stacks)
    few = extrapolate_layers(lambda layers: replay(spec, training, None, layers), stacks)
    whole = replay(spec, training)
    assert (few.set_up_bytes, few.final_bytes) == (whole.set_up_bytes, whole.final_bytes)
    assert few.peaks
    for place, peak in few.peaks.items():
        assert (peak.bytes, peak.by_kind) == (whole.peaks[place].bytes, whole.peaks[place].by_kind), place


def test_both_stacks_of_an_encoder_decoder_are_folded() -> None:
    spec = llmcalc.load("t5-v1.1-xl").model
    stacks = layer_stacks(spec)
    assert [loop.path for loop in stacks] == ["encoder.layers", "decoder.layers"]
    training = TrainingConfig(batch=1, seq=32, source_tokens=48)
    few = extrapolate_layers(
        lambda layers: replay(
            spec, training, None, {i: stacks[i].repeats_of_layer_types(n) for i, n in layers.items()}
        ),
        stacks,
    )
    whole = replay(spec, training)
    assert few.peak[1].bytes == whole.peak[1].bytes
    assert few.final_bytes == whole.final_bytes


def test_a_pattern_of_kinds_is_one_repeat() -> None:
    """Gemma 3 27B: 62 layers, five with a window and one without, and two more."""
    assert layer_stacks(llmcalc.load("gemma3-27b").model) == [LayerStack("layers", 0, 6, 10, layers_after=2)]
    assert not layer_stacks(llmcalc.load("gemma3-4b").model)[
        0
    ].is_extrapolated  # 34 layers: two runs of 18 and 24 would take longer


def test_where_one_layer_of_some_differs_a_repeat_has_a_multiple_of_them() -> None:
    """Of 62 layers in patterns of 6: 5 repeats of 12 layers and 2 more, of which each fourth layer is the same."""
    assert layer_stacks(llmcalc.load("gemma3-27b").model, recompute_interval=4) == [
        LayerStack("layers", 0, 12, 5, 2, 0, layers_after=2)
    ]
    (loop,) = layer_stacks(
        llmcalc.load("llama3-70b").model, recompute_interval=3
    )  # 26 repeats of 3 layers, and two layers
    assert (loop.layer_period, loop.repeat_count, loop.repeats_of_layer_types(4)) == (3, 26, 4 * 3 + 2)


@pytest.mark.parametrize(("name", "interval"), [("gemma3-27b", 1), ("gemma3-27b", 4), ("llama3-70b", 3)])
def test_a_run_of_four_repeats_has_the_layers_before_the_end_of_its_pattern(name: str, interval: int) -> None:
    (loop,) = layer_stacks(llmcalc.load(name).model, recompute_interval=interval)
    layers_of_types = loop.repeats_of_layer_types(4) * (loop.layer_period // loop.pattern_multiple)
    assert loop.layers_before + layers_of_types + loop.layers_after == loop.end_index(4)


def test_the_pattern_that_leaves_the_fewest_layers_is_found() -> None:
    """Layers before it, and layers after it that it does not continue."""
    window, full = ModuleScope("layers", {}), ModuleScope("layers", {})
    assert find_layer_pattern([window] * 9) == (0, 1, 9)
    assert find_layer_pattern([window] * 4) == (0, 4, 1)  # all are recorded
    assert find_layer_pattern([full] * 3 + [window] * 9) == (3, 1, 9)
    assert find_layer_pattern([full, window, window] * 6 + [window]) == (0, 3, 6)
    assert find_layer_pattern([window] * 9 + [full] * 12) == (9, 1, 12)
    assert find_layer_pattern([full, window] * 4) == (0, 8, 1)  # four repeats of it would be as many


def test_of_thousands_of_layers_a_timeline_lists_some() -> None:
    """From the first to the last, at equal distances, and the highest point is among them."""
    spec = llmcalc.load("smollm2-135m").model
    few, many = (
        training_memory(
            spec.model_copy(update={"decoder": spec.main.model_copy(update={"num_hidden_layers": n})}), WAYS["plain"]
        )
        for n in (100, 100_000)
    )
    assert len(many.timeline) < 12 * len(few.timeline)
    nodes = [point.module_path for point in many.timeline]
    assert {"layers.0", "layers.99999"} <= set(nodes)
    assert many.peak_at in many.timeline
