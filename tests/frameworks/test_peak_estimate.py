"""Stages of a pipeline share measurements of a few layers, and have the bytes of all of their layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmcalc import load
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.peak_estimate import PeakEstimate
from llmcalc.frameworks.registry import framework
from llmcalc.parallel.layout import Layout, Stage, stages


def estimate_of(recompute: str | None = None) -> tuple[PeakEstimate, list[Any]]:
    """The estimate of a model whose first layer is dense, and the measurements that it makes."""
    question = memory(load("deepseek-v2-lite").model, Settings("training", seq=256, recompute=recompute))
    estimate, measurements = framework("megatron").estimate(question), []
    measure = estimate.measure

    def recorded(layout: Layout, stage: Stage, repeats: Any) -> Any:
        measurements.append((stage.layers, tuple(repeats)))
        return measure(layout, stage, repeats)

    return replace(estimate, measure=recorded), measurements


def first_stage(layers: int, of: int = 27) -> tuple[Layout, Stage]:
    layout = Layout(pp=2, pp_layout=(layers, of - layers))
    return layout, next(iter(stages(layout, of)))


def test_stages_with_more_repeats_share_the_measurements_of_one() -> None:
    estimate, measurements = estimate_of()
    for layers in (10, 14, 20, 25):
        estimate.micro_batch_bytes(*first_stage(layers))
    assert measurements == [(range(9), (4,)), (range(9), (3,))]


def test_a_shared_measurement_gives_the_bytes_of_all_layers() -> None:
    """The first layer is dense, all others have experts; 19 repeats are those of 8, measured with 4 and 3."""
    for recompute in (None, "full"):
        estimate, _ = estimate_of(recompute)
        layout, stage = first_stage(20)
        (all_layers,) = estimate.measure(*estimate._layout_of_layers(layout, 0, 20, stage), [None])
        extrapolated = estimate.micro_batch_bytes(layout, stage)
        assert extrapolated.saved == all_layers.saved
        assert extrapolated.pass_peak == all_layers.pass_peak
