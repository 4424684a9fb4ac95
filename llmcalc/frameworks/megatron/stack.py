"""The software stack that determines a Megatron-LM run's times, and the format of its matrix products."""

from __future__ import annotations

from ..launch.record import Launch
from .settings import MegatronSettings

OVERLAPS = frozenset({"overlap-grad-reduce", "overlap-param-gather", "tp-comm-overlap"})
"""Arguments that send messages beside products; none of them changes memory."""


def stack(launched_run: Launch | None, is_compiled: bool) -> str:
    """Returns the name of the software stack, which depends on a file's overlapped communication and dispatcher."""
    if launched_run is None:
        return "megatron"
    if OVERLAPS.isdisjoint(argument_name.lstrip("-").replace("_", "-") for argument_name in launched_run.ignored):
        return "megatron-no-overlap"
    settings = launched_run.own_settings
    sends_copies = isinstance(settings, MegatronSettings) and settings.moe_token_dispatcher_type == "alltoall"
    return "megatron-alltoall" if sends_copies and settings.num_experts is not None else "megatron"


def product_format(settings: MegatronSettings) -> str:
    """Returns the number format of matrix products."""
    return "bf16" if settings.fp8_format is None else "fp8"
