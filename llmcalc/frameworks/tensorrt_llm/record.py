"""Registers TensorRT-LLM as a serving engine: flags, memory functions, layouts and versions."""

from __future__ import annotations

from ..engines.engine import Engine
from ..framework import LazyFunction

ENGINE = Engine(
    name="tensorrt-llm",
    title="TensorRT-LLM",
    flags=LazyFunction(__package__, "flags:flags"),
    rules=LazyFunction(__package__, "versions:tensorrt_llm_record"),
    server=LazyFunction(__package__, "budget:TensorRTLLMServer"),
    memory=LazyFunction(__package__, "budget:memory"),
    flag_changes=LazyFunction(__package__, "changes:flag_changes"),
    larger_layouts=LazyFunction(__package__, "changes:larger_layouts"),
    budgets_free_memory=True,
    flags_by_option={
        "--seq": "--max_seq_len",
        "-s": "--max_seq_len",
        "--users": "--max_batch_size",
        "--batch": "--max_batch_size",
        "--kv-dtype": "--kv_cache_dtype",
        "--devices": "--tp_size",
    },
    flags_by_term={
        "budget": "--kv_cache_free_gpu_memory_fraction",
        "weights": "--tp_size",
        "profile_run": "--max_num_tokens",
        "kv_cache": "--kv_cache_dtype",
    },
    vendors=("NVIDIA",),
    # docs/source/overview.md, docs/source/legacy/reference/support-matrix.md: from Ampere on
    minimum_compute_capability=8.0,
    shown_defaults=("--max_num_tokens", "--max_seq_len"),
    stacks_by_version=(((0,), "tensorrt-llm"),),
    layout_flags=LazyFunction(__package__, "changes:layout_flags"),
    batch_tokens_flag="max_num_tokens",
    request_limit_flag="max_batch_size",
    start_command_words=("trtllm-serve",),
)
