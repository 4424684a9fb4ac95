"""What one rank holds under DeepSpeed."""

from __future__ import annotations

from ...errors import InputError
from ...kernels.meter import Meter
from ...model import ModelSpec
from ...run.deepspeed import DeepSpeedSettings
from ..training import Training
from .divided import DividedRun


def zero_run(
    spec: ModelSpec,
    how: Training,
    settings: DeepSpeedSettings,
    ranks: int,
    rank: int,
    workspace: int = 0,
    meter: Meter | None = None,
) -> DividedRun:
    """The run of one rank. ranks: over which ZeRO divides."""
    if settings.stage not in (1, 2):
        raise InputError("no")
    return DividedRun(spec, how, settings, ranks, rank, workspace, meter)
