"""Reads logs of TensorRT-LLM's PyTorch backend (_torch/pyexecutor/_util.py) and of its C++ runtime's KV cache pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..logs.log_contents import (
    MEMORY_AMOUNT,
    VERSION_NUMBER,
    WHOLE_NUMBER,
    LogTerm,
    LogValues,
    ParsedLog,
    argument_pairs,
    line_pattern,
)
from ..logs.log_text import LogText

PATTERNS = (
    line_pattern("TensorRT-LLM version: ", rf": (?P<version>{VERSION_NUMBER})"),
    line_pattern("TensorRT LLM version: ", rf": (?P<version>{VERSION_NUMBER})"),
    line_pattern("after loading model weights (inside torch)", rf"profiling: (?P<weights>{MEMORY_AMOUNT})"),
    line_pattern("for model weights (inside torch)", rf"profiling: (?P<weights>{MEMORY_AMOUNT})"),
    line_pattern(
        "dynamically allocated during inference (inside torch)", rf"profiling: (?P<profile_run>{MEMORY_AMOUNT})"
    ),
    line_pattern("Memory used outside torch", rf"profiling: (?P<outside>{MEMORY_AMOUNT})"),
    line_pattern("device total memory ", rf"memory (?P<total>{MEMORY_AMOUNT})"),
    line_pattern("tmp kv_mem ", rf"kv_mem (?P<dummy_cache>{MEMORY_AMOUNT})"),
    line_pattern("temporary kv cache memory during profiling ", rf"profiling (?P<dummy_cache>{MEMORY_AMOUNT})"),
    line_pattern("available KV cache memory when calculating", rf"tokens: (?P<available>{MEMORY_AMOUNT})"),
    line_pattern("fraction is set ", r"set (?P<fraction>[0-9]\.[0-9]{1,20})"),
    line_pattern(
        "[MemUsageChange] Allocated ",
        rf"Allocated (?P<pool>{MEMORY_AMOUNT}) for max tokens[^(]{{0,60}}\((?P<tokens>{WHOLE_NUMBER})",
    ),
    line_pattern("Estimated max tokens in KV cache", rf": ?(?P<planned>{WHOLE_NUMBER})"),
    line_pattern("max_num_tokens=", rf"=(?P<max_num_tokens>{WHOLE_NUMBER})"),
    line_pattern("max_seq_len=", rf"=(?P<max_seq_len>{WHOLE_NUMBER})"),
    line_pattern("max_batch_size=", rf"=(?P<max_batch_size>{WHOLE_NUMBER})"),
    line_pattern("Number of tokens per block: ", rf": (?P<tokens_per_block>{WHOLE_NUMBER})"),
)

ARGUMENT_FIELDS = {
    "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size",
    "moe_expert_parallel_size": "ep_size",
}
"""Field of the printed arguments → name of the flag."""


def read_log(log_text: LogText) -> ParsedLog | None:
    """Returns the memory sizes that TensorRT-LLM printed in a log; None for a log without memory sizes."""
    log_values = LogValues(log_text, PATTERNS)
    memory_terms = tuple(_memory_terms(log_values))
    if not memory_terms or not ("available" in log_values or "weights" in log_values or "pool" in log_values):
        return None
    logged_arguments: dict[str, Any] = {}
    for log_line in log_text.lines_with("LLM Args", "engine args"):
        logged_arguments |= argument_pairs(log_line)
    flags = {
        ARGUMENT_FIELDS[argument_name]: argument_value
        for argument_name, argument_value in logged_arguments.items()
        if argument_name in ARGUMENT_FIELDS
    }
    flags |= log_values.stated_numbers("max_num_tokens", "max_seq_len", "max_batch_size", "tokens_per_block")
    if "fraction" in log_values:
        flags["kv_cache_free_gpu_memory_fraction"] = str(round(float(log_values.last_text("fraction")), 4))
    return ParsedLog(
        program="tensorrt-llm",
        title="TensorRT-LLM",
        terms=memory_terms,
        version=log_values.version,
        model=str(logged_arguments.get("model", logged_arguments.get("model_path", ""))),
        total_bytes=log_values.last_size("total"),
        flags=flags,
        has_complete_arguments=bool(logged_arguments),
        memory_saving_flag="--max_num_tokens",
    )


def _memory_terms(log_values: LogValues) -> Iterator[LogTerm]:
    """Yields each logged memory size. The memory outside torch includes the dummy run's cache.

    A server that stops before it makes its pool has that of the dummy run alone; its tokens are those it planned.
    """
    yield from log_values.largest_terms("weights", "profile_run")
    if "outside" in log_values:
        dummy_cache_bytes = log_values.last_size("dummy_cache") or 0
        yield LogTerm("non_torch", max(0, log_values.byte_sizes("outside")[-1] - dummy_cache_bytes))
    if "available" in log_values:
        yield LogTerm("kv_cache", min(log_values.byte_sizes("available")))
    elif "pool" in log_values:
        yield LogTerm("kv_cache", log_values.byte_sizes("pool")[-1])
    if "tokens" in log_values:
        pool_bytes, planned_bytes = log_values.whole_numbers("tokens"), log_values.whole_numbers("planned")
        logs_only_dummy_pool = planned_bytes and len({*pool_bytes}) == 1 and pool_bytes[-1] < planned_bytes[-1]
        yield LogTerm("kv_tokens", planned_bytes[-1] if logs_only_dummy_pool else pool_bytes[-1], "tokens")
