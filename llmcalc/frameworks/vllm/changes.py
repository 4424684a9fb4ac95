"""Changes of vLLM's flags that leave more memory for the KV cache, and layouts with more devices."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any

from ..engines.engine import EngineMemory
from ..engines.layouts import layouts_with_memory
from ..engines.rank import compressed_mixers_with_layer_counts
from .budget import VLLMServer, longest_request, memory
from .expert_exchange import backend_flags
from .flashinfer_sampler import SAMPLER_VARIABLE

FEWER_SEQUENCES = 64
"""Suggested value of `--max-num-seqs`."""

HIGHEST_UTILIZATION = 0.95
"""Largest suggested fraction of the memory (`--gpu-memory-utilization`)."""

TAKES_KEYS_FROM = (0, 9)
"""First version in which flags accept a dotted key of a table, such as `--flag.key` (vLLM pull request 18208)."""


def flag_changes(server: VLLMServer) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields flag changes that may give a larger KV cache, the cheapest first, as (typed text, flag values)."""
    server_memory = memory(server)
    most_sequences, block_tokens = server_memory.largest_request_limit, server_memory.block_size
    stage_memory, override = server.fullest_stage, server.flags.get("num_gpu_blocks_override")
    free_block_count = stage_memory.pool.block_count_in(stage_memory.available_bytes)
    if override is not None and free_block_count > int(override):
        yield f"--num-gpu-blocks-override {free_block_count}", {"num_gpu_blocks_override": free_block_count}
    if server_memory.startup_error.startswith(server.engine_record.messages["aligned_block"]):
        yield f"--max-num-batched-tokens {block_tokens}", {"max_num_batched_tokens": block_tokens}
    if server_memory.startup_error.startswith(server.engine_record.messages["whole_item"]):
        largest_input_tokens = server.largest_input_tokens
        yield f"--max-num-batched-tokens {largest_input_tokens}", {"max_num_batched_tokens": largest_input_tokens}
    if most_sequences > FEWER_SEQUENCES:
        yield f"--max-num-seqs {most_sequences}", {"max_num_seqs": most_sequences}
    if server.assumes_torch_sampler:
        yield f"{SAMPLER_VARIABLE}=1", {SAMPLER_VARIABLE: 1}
    if server.max_num_seqs > FEWER_SEQUENCES:
        yield f"--max-num-seqs {FEWER_SEQUENCES}", {"max_num_seqs": FEWER_SEQUENCES}
    if server.encoder_run is not None and server.encoder_run.input_medium == "video":
        limits_without_videos = {**server.flags.get("limit_mm_per_prompt", {}), "video": 0}
        accepts_dotted_keys = len(limits_without_videos) == 1 and server.version_numbers >= TAKES_KEYS_FROM
        typed_limits = ".video 0" if accepts_dotted_keys else f" {shlex.quote(json.dumps(limits_without_videos))}"
        yield f"--limit-mm-per-prompt{typed_limits}", {"limit_mm_per_prompt": limits_without_videos}
    longest_tokens = longest_request(server)
    if 0 < longest_tokens < server.longest_request:
        yield f"--max-model-len {longest_tokens}", {"max_model_len": longest_tokens}
    if server.cached_element_bytes > 1 and not compressed_mixers_with_layer_counts(server.rank_of_stage(0)):
        yield "--kv-cache-dtype fp8", {"kv_cache_dtype": "fp8"}
    if not server.flags.get("enforce_eager") and server.rules.subtracts_graph_memory:
        yield "--enforce-eager", {"enforce_eager": True}
    if server.utilization < HIGHEST_UTILIZATION:
        higher_utilization = {"gpu_memory_utilization": HIGHEST_UTILIZATION}
        yield f"--gpu-memory-utilization {HIGHEST_UTILIZATION}", higher_utilization
        has_no_cache = server_memory.startup_error.startswith(server.engine_record.messages["no_cache"])
        if has_no_cache and server.max_num_seqs > FEWER_SEQUENCES:
            typed_text = f"--max-num-seqs {FEWER_SEQUENCES} --gpu-memory-utilization {HIGHEST_UTILIZATION}"
            yield typed_text, {"max_num_seqs": FEWER_SEQUENCES, **higher_utilization}
    yield f"--tensor-parallel-size {2 * server.tp}", {"tensor_parallel_size": 2 * server.tp}
    if server.rank_of_stage(0).scheme is None and server.preset.storage_table is None:
        yield "--quantization fp8", {"quantization": "fp8"}


def larger_layouts(server: VLLMServer, most_devices: int) -> Iterator[tuple[dict[str, Any], EngineMemory]]:
    """Yields (flags, vLLM's memory) of each possible layout, fewest devices first.

    Where vLLM refuses its own default number of sequences, as many as the cache has blocks. most_devices: the largest
    number of devices.
    """
    for flags, server_memory in layouts_with_memory(
        server, memory, most_devices, whole_expert_flags=lambda tp: {"enable_expert_parallel": True}
    ):
        if server_memory.largest_request_limit and "max_num_seqs" not in server.flags:
            flags["max_num_seqs"] = server_memory.largest_request_limit
            server_memory = memory(server.with_flags(**flags))
        yield flags, server_memory


def layout_flags(tp: int, pp: int, dp: int, ep: int) -> dict[str, Any] | None:
    """Returns vLLM's flags for a layout; None if experts are divided over only some ranks (unsupported)."""
    if ep not in (1, tp * dp) or (ep > 1 and pp > 1 and dp > 1):
        return None
    parallel_sizes = {"tensor_parallel_size": tp, "pipeline_parallel_size": pp, "data_parallel_size": dp}
    flags: dict[str, Any] = {
        flag_name: parallel_size for flag_name, parallel_size in parallel_sizes.items() if parallel_size > 1
    }
    return flags | ({"enable_expert_parallel": True} if ep > 1 else {})


def exchange_flags(server: VLLMServer, exchange_library: str) -> dict[str, Any]:
    """Returns the flags with which the ranks of a server send tokens to experts by a library."""
    step_tokens = server.max_num_batched_tokens
    return backend_flags(server.preset.model, server.flags, exchange_library, step_tokens, server.version_numbers)
