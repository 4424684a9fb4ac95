"""Changes of SGLang's flags that leave more memory for the KV cache, and layouts with more devices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..engines.engine import EngineMemory
from ..engines.layouts import layouts_with_memory
from ..engines.rank import compressed_mixers_with_layer_counts
from .budget import SGLangServer, memory

HIGHEST_FRACTION = 0.93
"""Largest suggested `--mem-fraction-static`; a larger fraction leaves little memory for activations."""


FEWER_REQUESTS = 64
"""Suggested limit of requests with states of compressed attention; SGLang's default is 2,048 or more."""


def flag_changes(server: SGLangServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields flag changes that may give a larger KV cache, the cheapest first, as (typed text, flag values)."""
    has_compressed_attention = bool(
        compressed_mixers_with_layer_counts(server.rank_of_stage(0))
    )  # whose keys are in fp8 already
    if has_compressed_attention and (server.max_running_requests or FEWER_REQUESTS + 1) > FEWER_REQUESTS:
        yield f"--max-running-requests {FEWER_REQUESTS}", {"max_running_requests": FEWER_REQUESTS}
    if server.cached_element_bytes > 1 and not has_compressed_attention:
        yield "--kv-cache-dtype fp8_e4m3", {"kv_cache_dtype": "fp8_e4m3"}
    if server.cache_fraction < HIGHEST_FRACTION:
        yield f"--mem-fraction-static {HIGHEST_FRACTION}", {"mem_fraction_static": HIGHEST_FRACTION}
    yield f"--tp-size {2 * server.tp}", {"tp_size": 2 * server.tp}


def larger_layouts(server: SGLangServer, most_devices: int) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, SGLang's memory) of tensor parallelism over up to 16 devices, the fewest first.

    most_devices: the largest number of devices.
    """
    return layouts_with_memory(
        server, memory, most_devices, tp_limit=16, allows_stages=False, whole_expert_flags=lambda tp: {"ep_size": tp}
    )


def layout_flags(tp: int, pp: int, dp: int, ep: int) -> dict[str, Any] | None:
    """Returns SGLang's flags for a layout; None if SGLang does not support the layout.

    Ranks with attention of their own divide experts with all others.
    """
    rank_count = tp * dp
    if rank_count % ep:
        return None
    parallel_sizes: dict[str, Any] = {"tp_size": rank_count, "pp_size": pp, "dp_size": dp, "ep_size": ep}
    flags = {flag_name: parallel_size for flag_name, parallel_size in parallel_sizes.items() if parallel_size > 1}
    return flags | ({"enable_dp_attention": True} if dp > 1 else {})
