"""Changes of TensorRT-LLM's flags that leave more memory for the KV cache, and layouts with more devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...accelerator import Hardware
from ...errors import InputError
from ...sources.preset import Preset
from ..engines.engine import EngineMemory, EngineVersion
from .budget import Server, memory

FEWER_TOKENS = 2048
"""The value of `--max_num_tokens` that is tried."""

HIGHEST_FRACTION = 0.95
"""The highest fraction of the free memory that is tried."""


def candidates(
    preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields flag changes that may give a larger KV cache, the cheapest first, as (typed text, flag values)."""
    server = Server(preset, hardware, version, flags)
    if server.max_num_tokens > FEWER_TOKENS:
        yield f"--max_num_tokens {FEWER_TOKENS}", {"max_num_tokens": FEWER_TOKENS}
    if server.cached_element_bytes > 1:
        yield "--kv_cache_dtype fp8", {"kv_cache_dtype": "fp8"}
    if server.fraction < HIGHEST_FRACTION:
        yield (
            f"--kv_cache_free_gpu_memory_fraction {HIGHEST_FRACTION}",
            {"kv_cache_free_gpu_memory_fraction": HIGHEST_FRACTION},
        )
    yield f"--tp_size {2 * server.tp}", {"tp_size": 2 * server.tp}


def layouts(
    preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any], most_devices: int
) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, TensorRT-LLM's memory) of each possible layout, the fewest devices first.

    That is tensor parallelism within a server of 8 devices, then stages of 8. most_devices: the largest number of
    devices.
    """
    tensor, stages = flags.get("tp_size"), flags.get("pp_size")
    devices = 1
    while devices <= most_devices:
        tp = tensor or min(devices, 8)
        pp = stages or max(1, devices // tp)
        flags_of_layout = {
            name: parallel_size for name, parallel_size in (("tp_size", tp), ("pp_size", pp)) if parallel_size > 1
        }
        if tp * pp == devices:
            try:
                yield flags_of_layout, memory(preset, hardware, version, {**flags, **flags_of_layout})
            except InputError as error:
                if "divide" not in str(error):
                    raise
        devices *= 2


def layout_flags(tp: int, pp: int, dp: int, ep: int) -> dict[str, Any] | None:
    """Returns TensorRT-LLM's flags of a layout; None for a layout that it does not support.

    Ranks with attention of their own are all ranks of a stage.
    """
    ranks = tp * dp
    if ranks % ep or (dp > 1 and tp > 1):
        return None
    parallel_sizes: dict[str, Any] = {"tp_size": ranks, "pp_size": pp, "ep_size": ep}
    flags = {name: parallel_size for name, parallel_size in parallel_sizes.items() if parallel_size > 1}
    return flags | ({"enable_attention_dp": True} if dp > 1 else {})
