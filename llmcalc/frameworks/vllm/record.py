"""Registers vLLM as a serving engine: flags, memory functions, layouts and versions."""

from __future__ import annotations

from ..engines.engine import Engine
from ..framework import LazyFunction

ENGINE = Engine(
    name="vllm",
    title="vLLM",
    flags=LazyFunction(__package__, "flags:flags"),
    rules=LazyFunction(__package__, "versions:vllm_record"),
    server=LazyFunction(__package__, "budget:VLLMServer"),
    memory=LazyFunction(__package__, "budget:memory"),
    flag_changes=LazyFunction(__package__, "changes:flag_changes"),
    larger_layouts=LazyFunction(__package__, "changes:larger_layouts"),
    flags_by_option={
        "--seq": "--max-model-len",
        "-s": "--max-model-len",
        "--users": "--max-num-seqs",
        "--batch": "--max-num-seqs",
        "--kv-dtype": "--kv-cache-dtype",
        "--devices": "--tensor-parallel-size",
    },
    alternatives_by_option={
        "--draft": '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 1}\'',
        "--draft-tokens": "num_speculative_tokens of --speculative-config",
        "--ep": "--enable-expert-parallel alone, which divides experts over all ranks of --tp and --dp",
    },
    flags_by_term={
        "budget": "--gpu-memory-utilization",
        "weights": "--quantization",
        "profile_run": "--max-num-seqs",
        "cuda_graphs": "--enforce-eager",
        "kv_cache": "--kv-cache-dtype",
    },
    plugin_vendors=("Google", "Huawei", "Intel", "AWS"),  # tpu-inference, vllm-ascend, vllm-gaudi, vllm-neuron
    plugin_stacks={"Huawei": "vllm-npu", "AWS": "vllm-neuron"},
    minimum_compute_capability=7.0,  # docs/getting_started/installation/gpu.cuda.inc.md
    shown_defaults=("--max-num-seqs", "--max-num-batched-tokens", "--max-model-len"),
    stacks_by_version=(((0,), "vllm-2024"), ((0, 8), "vllm-2025"), ((0, 14), "vllm")),
    layout_flags=LazyFunction(__package__, "changes:layout_flags"),
    exchange_flags=LazyFunction(__package__, "changes:exchange_flags"),
    draft_flags=LazyFunction(__package__, "speculation:draft_flags"),
    benchmark_remark=", as those of `vllm bench serve --max-concurrency` do",
    batch_tokens_flag="max_num_batched_tokens",
    request_limit_flag="max_num_seqs",
    start_command_words=("vllm", "serve"),
    applied_schemes={scheme: {"quantization": "fp8"} for scheme in ("fp8", "fp8-dynamic")},
)
