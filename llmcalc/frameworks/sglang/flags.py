"""The flags of `sglang.launch_server` (python/sglang/srt/server_args.py) that change memory, and idle ones."""

from __future__ import annotations

from ..engines.flags import Flag

_NOT_MODELLED = "is not modelled; remove the flag"

IDLE = (
    "--host", "--port", "--served-model-name", "--tokenizer-path", "--tokenizer-mode", "--revision", "--load-format",
    "--download-dir", "--random-seed", "--api-key", "--chat-template", "--tool-call-parser", "--reasoning-parser",
    "--log-level", "--schedule-policy", "--schedule-conservativeness", "--watchdog-timeout", "--attention-backend",
    "--max-running-requests", "--dist-init-addr", "--nnodes", "--node-rank",
)  # fmt: skip
"""Flags with a value that change no memory of the cache."""

IDLE_SWITCHES = (
    "--trust-remote-code", "--disable-radix-cache", "--enable-metrics", "--log-requests", "--disable-custom-all-reduce",
    "--skip-server-warmup", "--enable-mixed-chunk",
)  # fmt: skip

FLAGS = (
    Flag(("--tp-size", "--tp", "--tensor-parallel-size"), "number", most=1024),
    Flag(("--mem-fraction-static",), "share"),
    Flag(("--context-length",), "tokens"),
    Flag(("--max-total-tokens",), "tokens"),
    Flag(("--chunked-prefill-size",), "tokens"),
    Flag(("--cuda-graph-max-bs",), "number"),
    Flag(("--disable-cuda-graph",), "switch"),
    Flag(("--kv-cache-dtype",), "word", ("auto", "bf16", "bfloat16", "fp8_e4m3", "fp8_e5m2")),
    Flag(("--dtype",), "word", ("auto", "bfloat16", "half", "float16", "float", "float32")),
    Flag(("--page-size",), "number", most=4096),
    Flag(("--swa-full-tokens-ratio",), "share"),
    Flag(("--mamba-full-memory-ratio",), "share"),
    Flag(("--quantization",), refused="the scheme of the checkpoint holds; expected --quantize SCHEME for another"),
    Flag(("--pp-size", "--pipeline-parallel-size"), refused=f"a pipeline {_NOT_MODELLED}"),
    Flag(("--dp-size", "--data-parallel-size"), refused=f"data parallelism {_NOT_MODELLED}"),
    Flag(("--ep-size", "--ep", "--expert-parallel-size"), refused=f"expert parallelism {_NOT_MODELLED}"),
    Flag(("--enable-dp-attention",), "switch", refused=f"data parallelism of attention {_NOT_MODELLED}"),
    Flag(("--speculative-algorithm", "--speculative-algo"), refused=f"speculative decoding {_NOT_MODELLED}"),
    Flag(("--lora-paths",), refused=f"adapters {_NOT_MODELLED}"),
    Flag(("--cpu-offload-gb",), refused=f"offloading {_NOT_MODELLED}"),
    *(Flag((name,), is_idle=True) for name in IDLE),
    *(Flag((name,), "switch", is_idle=True) for name in IDLE_SWITCHES),
)


def flags() -> tuple[Flag, ...]:
    """Returns the flags of SGLang."""
    return FLAGS
