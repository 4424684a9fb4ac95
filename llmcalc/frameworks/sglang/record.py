"""Registers SGLang as a serving engine: flags, memory functions, layouts and versions."""

from __future__ import annotations

from ..engines.engine import Engine
from ..framework import LazyFunction

ENGINE = Engine(
    name="sglang",
    title="SGLang",
    flags=LazyFunction(__package__, "flags:flags"),
    rules=LazyFunction(__package__, "versions:sglang_record"),
    server=LazyFunction(__package__, "budget:SGLangServer"),
    memory=LazyFunction(__package__, "budget:memory"),
    flag_changes=LazyFunction(__package__, "changes:flag_changes"),
    larger_layouts=LazyFunction(__package__, "changes:larger_layouts"),
    budgets_free_memory=True,
    flags_by_option={
        "--seq": "--context-length",
        "-s": "--context-length",
        "--kv-dtype": "--kv-cache-dtype",
        "--users": "--max-running-requests",
        "--batch": "--max-running-requests",
        "--devices": "--tp-size",
    },
    alternatives_by_option={
        "--draft": "--speculative-algorithm nextn, or another with --speculative-draft-model-path",
        "--draft-tokens": "--speculative-num-draft-tokens",
    },
    flags_by_term={
        "budget": "--mem-fraction-static",
        "weights": "--tp-size",
        "cuda_graphs": "--cuda-graph-max-bs",
        "kv_cache": "--mem-fraction-static",
    },
    plugin_vendors=("Google", "Huawei", "Intel"),  # sglang-jax, and the pages of docs/hardware-platforms
    minimum_compute_capability=7.5,  # docs/get_started/quickstart
    stacks_by_version=(((0,), "sglang-2025"), ((0, 5, 10), "sglang-0510"), ((0, 5, 14), "sglang")),
    layout_flags=LazyFunction(__package__, "changes:layout_flags"),
    benchmark_remark=" (`sglang.bench_serving` draws uneven ones unless --random-range-ratio is 1)",
    batch_tokens_flag="chunked_prefill_size",
    request_limit_flag="max_running_requests",
    start_command_words=("python", "-m", "sglang.launch_server", "--model-path"),
    applied_schemes={"fp8-dynamic": {"quantization": "fp8"}},
)
