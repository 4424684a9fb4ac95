"""The flags of `trtllm-serve` (tensorrt_llm/commands/serve.py), and the fields of `kv_cache_config` in its YAML file.

A field has the name that `llmapi.KvCacheConfig` gives it; typed in full it is `--kv_cache_config.tokens_per_block`.
"""

from __future__ import annotations

from ..engines.flags import Flag, memory_neutral_flags_of_engine, refused_flags

NAMES_OF_THE_FRACTION = (
    "--kv_cache_free_gpu_memory_fraction|--free_gpu_memory_fraction|--kv_cache_config.free_gpu_memory_fraction"
)

FLAGS = (
    Flag(("--tp_size", "--tensor_parallel_size"), "number", maximum=1024),
    Flag(("--pp_size", "--pipeline_parallel_size"), "number", maximum=1024),
    Flag(("--ep_size", "--moe_expert_parallel_size"), "number", maximum=1024),
    Flag(("--max_seq_len",), "tokens"),
    Flag(("--max_batch_size",), "number", maximum=10**6),
    Flag(("--max_num_tokens",), "tokens", maximum=10**8),
    Flag(tuple(NAMES_OF_THE_FRACTION.split("|")), "share"),
    Flag(("--kv_cache_dtype", "--kv_cache_config.dtype"), "word", ("auto", "float16", "bfloat16", "fp8")),
    Flag(("--max_tokens", "--kv_cache_config.max_tokens"), "tokens"),
    Flag(("--max_gpu_total_bytes", "--kv_cache_config.max_gpu_total_bytes"), "tokens", maximum=10**15),
    Flag(("--tokens_per_block", "--kv_cache_config.tokens_per_block"), "number", maximum=4096),
    Flag(("--dtype",), "word", ("auto", "bfloat16", "float16", "float32")),
    Flag(("--max_beam_width",), "word", ("1",)),
    Flag(("--backend",), "word", ("pytorch",)),
    *refused_flags("context parallelism", "--cp_size|--context_parallel_size"),
    *refused_flags("clusters of experts", "--cluster_size|--moe_cluster_parallel_size"),
    Flag(("--enable_attention_dp",), "switch"),
    Flag(("--speculative_config",), "table"),
    *refused_flags("adapters", "--lora_config"),
    *refused_flags("pools of windows", "--max_attention_window|--kv_cache_config.max_attention_window"),
    *refused_flags("sparse attention", "--sparse_attention_config|--sparse_attention_config.algorithm"),
    Flag(
        ("--config", "--extra_llm_api_options"),
        refusal_reason="a file of options is not read here; expected its fields as flags, such as "
        "--kv_cache_config.dtype fp8",
    ),
    *memory_neutral_flags_of_engine(__file__),
)


def flags() -> tuple[Flag, ...]:
    """Returns all command-line flags of TensorRT-LLM."""
    return FLAGS
