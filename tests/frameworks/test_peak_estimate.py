"""Stages of a pipeline share measurements of a few layers, and have the bytes of all of their layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.peak_estimate import PeakEstimate
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.registry import framework
from llmcalc.parallel.layout import Layout, Stage, stages

SMALL = "qwen3-0.6b"


def estimate_of(recompute: str | None = None) -> tuple[PeakEstimate, list[Any]]:
    """The estimate of a model whose first layer is dense, and the measurements that it makes."""
    question = memory(load("deepseek-v2-lite").model, Settings("training", seq=256, recompute=recompute))
    estimate, measurements = framework("megatron").estimate(question), []
    measure = estimate.measure_passes

    def recorded(layout: Layout, stage: Stage, repeats: Any) -> Any:
        measurements.append((stage.layers, tuple(repeats)))
        return measure(layout, stage, repeats)

    return replace(estimate, measure_passes=recorded), measurements


def first_stage(layers: int, of: int = 27) -> tuple[Layout, Stage]:
    layout = Layout(pp=2, pp_layout=(layers, of - layers))
    return layout, next(iter(stages(layout, of)))


def last_stage(layers: int, of: int = 27) -> tuple[Layout, Stage]:
    layout = Layout(pp=2, pp_layout=(of - layers, layers))
    return layout, list(stages(layout, of))[1]


def test_stages_with_more_repeats_share_the_measurements_of_one() -> None:
    estimate, measurements = estimate_of()
    for layers in (10, 14, 20, 25):
        estimate.micro_batch_bytes(*first_stage(layers))
    assert measurements == [(range(9), (4, 3))]


def test_a_shared_measurement_gives_the_bytes_of_all_layers() -> None:
    """The first layer is dense, all others have experts; 19 repeats are those of 8, measured with 4 and 3."""
    for recompute in (None, "full"):
        estimate, _ = estimate_of(recompute)
        layout, stage = first_stage(20)
        (all_layers,) = estimate.measure_passes(*estimate._layout_of_layers(layout, 0, 20, stage), [None])
        extrapolated = estimate.micro_batch_bytes(layout, stage)
        assert extrapolated.saved_bytes == all_layers.saved_bytes
        assert extrapolated.layer_forward_peak == all_layers.layer_forward_peak
        assert extrapolated.loss_peak == all_layers.loss_peak
        assert extrapolated.head_backward_peak == all_layers.head_backward_peak
        extrapolated_peak, peak_of_all = (
            max(batch.layer_backward_peak, batch.backward_peak_outside_modules) for batch in (extrapolated, all_layers)
        )
        assert extrapolated_peak == peak_of_all


def test_a_rank_that_is_measured_already_tells_that_a_layout_is_too_large() -> None:
    """The second of two stages is measured already and exceeds the bytes by itself: the first one is not measured."""
    estimate, _ = estimate_of()
    layout = Layout(pp=2, pp_layout=(13, 14))
    largest = estimate.largest_rank_bytes(layout, 2)
    peaks = estimate.peaks_by_stage(layout, 2)
    assert not estimate.exceeds(layout, 2, lambda bytes: bytes > largest)
    assert estimate.exceeds(layout, 2, lambda bytes: bytes >= largest)
    fresh_estimate, measurements = estimate_of()
    fresh_estimate.micro_batch_bytes(*last_stage(20))
    measurements.clear()
    assert fresh_estimate.exceeds(layout, 2, lambda bytes: bytes >= peaks[1])
    assert measurements == []


def test_runs_with_another_recomputation_share_counts_of_parameters() -> None:
    estimate, _ = estimate_of()
    recomputing_estimate = framework("megatron").estimate(
        memory(estimate.spec, Settings("training", seq=256, recompute="full"))
    )
    layout = Layout(pp=2, pp_layout=(13, 14))
    separate_bytes = recomputing_estimate.lower_bound_bytes(layout)
    estimate.lower_bound_bytes(layout)
    recomputing_estimate.take_over_parameter_counts(estimate)
    assert recomputing_estimate._parameters_by_stage is estimate._parameters_by_stage
    assert recomputing_estimate.lower_bound_bytes(layout) == separate_bytes
    other_format = replace(recomputing_estimate, included_parts=frozenset({"mtp"}), _parameters_by_stage={})
    other_format.take_over_parameter_counts(estimate)
    assert other_format._parameters_by_stage is not estimate._parameters_by_stage


@pytest.mark.parametrize("framework_name", ["megatron", "torch"])
def test_the_last_stage_has_no_table_of_modules_that_do_not_run(framework_name: str) -> None:
    """Modules that predict further tokens look up a copy of the embedding, which only a run of theirs stores."""
    with_modules = load("glm-4.5-air").model
    decoder = with_modules.decoder
    assert decoder is not None
    assert with_modules.mtp is not None
    layout, bytes_by_kind = Layout(pp=2, pp_layout=(2, 1)), list[Any]()
    for mtp in (with_modules.mtp, None):
        stack = decoder.model_copy(update={"num_hidden_layers": 3})
        spec = with_modules.model_copy(update={"mtp": mtp, "decoder": stack})
        run = memory(spec, Settings("training", seq=256, num_microbatches=2))
        cluster = Cluster.with_framework(run, layout, framework_name)
        bytes_by_kind.append(cluster.rank_memory(layout.rank(pp=1), run.cuda_runtime).device.by_kind)
    assert bytes_by_kind[0] == bytes_by_kind[1]


@pytest.mark.parametrize("recompute", [None, "full"])
def test_the_first_layers_share_a_measurement_with_few_repeats_too(recompute: str | None) -> None:
    """After the dense layer come four to seven with experts; four of them are what the shared measurement runs."""
    for layers in (5, 6, 8):
        estimate, measurements = estimate_of(recompute)
        layout, stage = first_stage(layers)
        assert estimate.micro_batch_bytes(layout, stage) is not None
        assert measurements == [(range(9), (4, 3))]
        (all_layers,) = estimate.measure_passes(*estimate._layout_of_layers(layout, 0, layers, stage), [None])
        shared = estimate.micro_batch_bytes(layout, stage)
        assert (shared.saved_bytes, shared.layer_forward_peak) == (
            all_layers.saved_bytes,
            all_layers.layer_forward_peak,
        )
        assert shared.layer_backward_peak == all_layers.layer_backward_peak
    estimate, measurements = estimate_of(recompute)
    estimate.micro_batch_bytes(*first_stage(4))
    assert measurements == [(range(4), (None,))]


@pytest.mark.parametrize(("model", "layers"), [("deepseek-v2-lite", 27), ("qwen3-next-80b-a3b", 48), (SMALL, 28)])
@pytest.mark.parametrize("name", ["megatron", "fsdp2"])
def test_a_stage_has_the_parameters_of_its_layers(model: str, layers: int, name: str) -> None:
    """Counted from a layer of each kind, as from the recorded stage; rows of FSDP2's shards are padded."""
    estimate = framework(name).estimate(memory(load(model).model, Settings("training", seq=256)))
    layout = Layout(tp=2, pp=3, pp_layout=(5, layers - 11, 6), sequence_parallel=True)
    for shards in (1, 64) if estimate.pads_shards else (1,):
        for stage in stages(layout, layers):
            counted = estimate._count_parameters(layout, stage, shards)
            assert counted == estimate._count_recorded_parameters(layout, stage, shards)
