"""The replay of a recorded case of DeepSpeed (`tests.frameworks.deepspeed.record`), in the quantities of its record."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from llmcalc.device_memory.training import TrainingConfig
from llmcalc.frameworks.deepspeed.rank_memory import create_zero_run
from llmcalc.frameworks.deepspeed.settings import DeepSpeedSettings
from llmcalc.frameworks.deepspeed.zero import ZeroSetup
from llmcalc.model import ModelSpec
from llmcalc.simulator.meter import Meter
from llmcalc.workload.recompute import parse_recompute
from tests.frameworks.deepspeed.record import ALIKE, BATCH, SEQ, Case

PHASES = ("forward", "backward", "step")


def settings(config: Mapping[str, Any]) -> DeepSpeedSettings:
    """The settings of a recorded configuration."""
    zero = config["zero_optimization"]
    named = {name: one["device"] if name.startswith("offload_") else one for name, one in zero.items()}
    for key in ("communication_data_type", "gradient_clipping"):
        if key in config:
            named[key] = config[key]
    return DeepSpeedSettings(**named, **config.get("data_types", {}))


def training(case: Case) -> TrainingConfig:
    """The training that a case runs."""
    return TrainingConfig(
        batch=BATCH,
        seq=SEQ,
        microbatches=case.config["gradient_accumulation_steps"],
        dtype="bfloat16" if case.config["bf16"]["enabled"] else "float32",
        recompute=parse_recompute(case.recompute),
        adapters=case.trained_beside,
        kernel_choices=case.kernel_choices,
    )


@cache
def _model() -> ModelSpec:
    from tests.frameworks.deepspeed.record import model

    return model()


def replayed(case: Case, rank: int) -> dict[str, int]:
    """The bytes of one rank: after set-up, the most in each phase of the last step, and what is left."""
    meter = Meter()
    run = create_zero_run(ZeroSetup(_model(), training(case), settings(case.config), case.ranks, rank), meter)
    run.graph.adds_in_place = False  # under a dispatch mode torch adds gradients into new tensors
    run.set_up()
    bytes_by_moment = {"set_up": meter.live_bytes}
    for _ in range(ALIKE):
        meter.peaks = {}
        run.replace_batch()
        run.run_micro_batches()
        bytes_by_moment["after_backward"] = meter.live_bytes
        run.update()
        run.zero_grad()
    for phase in PHASES:
        bytes_by_moment[phase] = max(peak.bytes for place, peak in meter.peaks.items() if place.phase == phase)
    return {**bytes_by_moment, "after": meter.live_bytes}
