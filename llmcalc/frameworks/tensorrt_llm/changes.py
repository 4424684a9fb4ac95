"""Changes of TensorRT-LLM's flags that leave more memory for the KV cache, and layouts with more devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..engines.engine import EngineMemory
from ..engines.layouts import layouts_with_memory
from .budget import TensorRTLLMServer, memory

FEWER_TOKENS = 2048
"""Suggested value of `--max_num_tokens`."""

HIGHEST_FRACTION = 0.95
"""Largest suggested fraction of the free memory."""


def flag_changes(server: TensorRTLLMServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields flag changes that may give a larger KV cache, the cheapest first, as (typed text, flag values)."""
    if server.max_num_tokens > FEWER_TOKENS:
        yield f"--max_num_tokens {FEWER_TOKENS}", {"max_num_tokens": FEWER_TOKENS}
    if server.cached_element_bytes > 1:
        yield "--kv_cache_dtype fp8", {"kv_cache_dtype": "fp8"}
    if server.cache_fraction < HIGHEST_FRACTION:
        yield (
            f"--kv_cache_free_gpu_memory_fraction {HIGHEST_FRACTION}",
            {"kv_cache_free_gpu_memory_fraction": HIGHEST_FRACTION},
        )
    yield f"--tp_size {2 * server.tp}", {"tp_size": 2 * server.tp}


def larger_layouts(server: TensorRTLLMServer, most_devices: int) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, TensorRT-LLM's memory) of each possible layout, fewest devices first.

    most_devices: the largest number of devices.
    """
    return layouts_with_memory(server, memory, most_devices)


def layout_flags(tp: int, pp: int, dp: int, ep: int) -> dict[str, Any] | None:
    """Returns TensorRT-LLM's flags for a layout; None if TensorRT-LLM does not support the layout.

    Ranks with attention of their own are all ranks of a stage.
    """
    rank_count = tp * dp
    if rank_count % ep or (dp > 1 and tp > 1):
        return None
    parallel_sizes: dict[str, Any] = {"tp_size": rank_count, "pp_size": pp, "ep_size": ep}
    flags = {flag_name: parallel_size for flag_name, parallel_size in parallel_sizes.items() if parallel_size > 1}
    return flags | ({"enable_attention_dp": True} if dp > 1 else {})
