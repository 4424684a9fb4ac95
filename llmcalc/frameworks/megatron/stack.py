"""The software stack that determines a Megatron-LM run's times, and the format of its matrix products."""

from __future__ import annotations

from ..launch.record import Launch
from .settings import MegatronSettings

OVERLAPS = frozenset({"overlap-grad-reduce", "overlap-param-gather", "tp-comm-overlap"})
"""Arguments that send messages beside products; none of them changes memory."""


def stack(launched_run: Launch | None, is_compiled: bool) -> str:
    """Returns the software stack's name, by whether a launch file turns off overlapped communication."""
    if launched_run is None or not OVERLAPS.isdisjoint(
        argument.lstrip("-").replace("_", "-") for argument in launched_run.ignored
    ):
        return "megatron"
    return "megatron-no-overlap"


def product_format(settings: MegatronSettings) -> str:
    """Returns the number format of matrix products."""
    return "bf16" if settings.fp8_format is None else "fp8"
