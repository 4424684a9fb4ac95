"""Changes of SGLang's flags that leave more memory for the KV cache, and layouts with more devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...accelerator import Hardware
from ...errors import InputError
from ...sources.preset import Preset
from ..engines.engine import EngineMemory, EngineVersion
from .budget import Server, memory

HIGHEST_FRACTION = 0.93
"""The highest fraction that is tried: above it little is left for activations."""


def candidates(
    preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields flag changes that may give a larger KV cache, the cheapest first, as (typed text, flag values)."""
    server = Server(preset, hardware, version, flags)
    if server.cached_element_bytes > 1:
        yield "--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}
    if server.fraction < HIGHEST_FRACTION:
        yield f"--mem-fraction-static {HIGHEST_FRACTION}", {"mem_fraction_static": HIGHEST_FRACTION}
    yield f"--tp-size {2 * server.tp}", {"tp_size": 2 * server.tp}


def layouts(
    preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any], most_devices: int
) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, SGLang's memory) of each possible layout, the fewest devices first.

    most_devices: the largest number of devices; tensor parallelism stays within 16.
    """
    tensor = flags.get("tp_size")
    for tp in [tensor] if tensor else [1, 2, 4, 8, 16]:
        if tp > most_devices:
            return
        tp_flags = {} if tp == 1 else {"tp_size": tp}
        try:
            yield tp_flags, memory(preset, hardware, version, {**flags, **tp_flags})
        except InputError as error:
            if "divide" not in str(error):
                raise


def layout_flags(tp: int, pp: int, dp: int, ep: int) -> dict[str, Any] | None:
    """Returns SGLang's flags of a layout; None for a layout that SGLang does not support.

    Ranks with attention of their own divide experts with all others.
    """
    ranks = tp * dp
    if ranks % ep:
        return None
    parallel_sizes: dict[str, Any] = {"tp_size": ranks, "pp_size": pp, "dp_size": dp, "ep_size": ep}
    flags = {name: parallel_size for name, parallel_size in parallel_sizes.items() if parallel_size > 1}
    return flags | ({"enable_dp_attention": True} if dp > 1 else {})
