"""The flags of `vllm serve` (vllm/engine/arg_utils.py, `EngineArgs.add_cli_args`) that change memory, and idle ones."""

from __future__ import annotations

from ..engines.flags import Flag

CACHE_WORDS = ("auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2")
DTYPE_WORDS = ("auto", "bfloat16", "half", "float16", "float", "float32")
QUANTIZATION_WORDS = (
    "fp8", "awq", "awq_marlin", "gptq", "gptq_marlin", "compressed-tensors", "mxfp4", "gpt_oss_mxfp4", "modelopt",
    "modelopt_fp4", "bitsandbytes", "none",
)  # fmt: skip

IDLE = (
    "--host", "--port", "--served-model-name", "--tokenizer", "--tokenizer-mode", "--revision", "--code-revision",
    "--download-dir", "--load-format", "--seed", "--api-key", "--chat-template", "--tool-call-parser",
    "--reasoning-parser", "--generation-config", "--distributed-executor-backend", "--uvicorn-log-level",
    "--response-role", "--swap-space", "--max-log-len", "--prefix-caching-hash-algo", "--config-format",
)  # fmt: skip
"""Flags with a value that change no memory of a device."""

IDLE_SWITCHES = (
    "--trust-remote-code", "--enable-prefix-caching", "--enable-auto-tool-choice", "--disable-log-requests",
    "--disable-log-stats", "--enable-log-requests", "--async-scheduling", "--disable-custom-all-reduce",
    "--enable-chunked-prefill", "--enable-reasoning",
)  # fmt: skip

_NOT_MODELLED = "is not modelled; remove the flag"

FLAGS = (
    Flag(("--tensor-parallel-size", "-tp", "--tp"), "number", most=1024),
    Flag(("--pipeline-parallel-size", "-pp", "--pp"), "number", most=1024),
    Flag(("--data-parallel-size", "-dp", "--dp"), "number", most=1024),
    Flag(("--enable-expert-parallel", "-ep", "--ep"), "switch"),
    Flag(("--max-model-len",), "tokens"),
    Flag(("--max-num-seqs",), "number", most=10**6),
    Flag(("--max-num-batched-tokens",), "tokens", most=10**8),
    Flag(("--gpu-memory-utilization",), "share"),
    Flag(("--kv-cache-dtype",), "word", CACHE_WORDS),
    Flag(("--kv-cache-memory-bytes", "--kv-cache-memory"), "tokens", most=10**15),
    Flag(("--num-gpu-blocks-override",), "number"),
    Flag(("--dtype",), "word", DTYPE_WORDS),
    Flag(("--quantization", "-q"), "word", QUANTIZATION_WORDS),
    Flag(("--enforce-eager",), "switch"),
    Flag(("--block-size",), "number", most=4096),
    Flag(("--cpu-offload-gb",), "gib"),
    Flag(("--language-model-only",), "switch"),
    Flag(("--speculative-config", "--speculative-model"), refused=f"speculative decoding {_NOT_MODELLED}"),
    Flag(("--num-speculative-tokens",), refused=f"speculative decoding {_NOT_MODELLED}"),
    Flag(("--enable-lora",), "switch", refused=f"adapters {_NOT_MODELLED}"),
    Flag(("--max-loras",), refused=f"adapters {_NOT_MODELLED}"),
    Flag(("--limit-mm-per-prompt",), refused=f"the cache of encoders {_NOT_MODELLED}"),
    Flag(("--kv-transfer-config",), refused=f"the transfer of caches {_NOT_MODELLED}"),
    Flag(("--decode-context-parallel-size", "-dcp"), refused=f"context parallelism {_NOT_MODELLED}"),
    Flag(("--prefill-context-parallel-size", "-pcp"), refused=f"context parallelism {_NOT_MODELLED}"),
    Flag(("--compilation-config", "-O", "-cc"), refused=f"a configuration of the compiler {_NOT_MODELLED}"),
    Flag(("--hf-overrides",), refused="changes the model; expected --set PATH=VALUE of llmcalc"),
    *(Flag((name,), is_idle=True) for name in IDLE),
    *(Flag((name,), "switch", is_idle=True) for name in IDLE_SWITCHES),
)


def flags() -> tuple[Flag, ...]:
    """Returns the flags of vLLM."""
    return FLAGS
