"""What one rank holds under DeepSpeed."""

from __future__ import annotations

from ...errors import InputError
from ...kernels.meter import Meter
from ...model import ModelSpec
from ...run.deepspeed import DeepSpeedSettings
from ..training import Training
from .divided import DividedRun
from .gathered import GatheredRun


def zero_run(
    spec: ModelSpec,
    how: Training,
    settings: DeepSpeedSettings,
    ranks: int,
    rank: int,
    workspace: int = 0,
    meter: Meter | None = None,
) -> DividedRun | GatheredRun:
    """The run of one rank. ranks: over which ZeRO divides."""
    if settings.stage == 3:
        return GatheredRun(spec, how, settings, ranks, workspace, meter)
    return DividedRun(spec, how, settings, ranks, rank, workspace, meter)
