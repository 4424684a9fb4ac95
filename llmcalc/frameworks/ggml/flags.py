"""The flags that llama-server and its fork share (common/arg.cpp): those that change memory, and idle ones."""

from __future__ import annotations

from ..engines.flags import Flag

NOT_MODELLED = "is not modelled; remove the flag"

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

ON_OFF = ("on", "off", "auto", "1", "0")

SHARED = (
    Flag(("--ctx-size", "-c"), "tokens", least=0, most=10**9),
    Flag(("--n-gpu-layers", "--gpu-layers", "-ngl"), "number", ("auto", "all"), least=-2, most=10**6),
    Flag(("--n-cpu-moe", "-ncmoe"), "number", least=0, most=10**6),
    Flag(("--cpu-moe", "-cmoe"), "switch"),
    Flag(("--override-tensor", "-ot"), "text", repeats=True),
    Flag(("--ubatch-size", "-ub"), "tokens", most=10**7),
    Flag(("--batch-size", "-b"), "tokens", most=10**7),
    Flag(("--parallel", "-np"), "number", least=-1, most=10**4),
    Flag(("--flash-attn", "-fa"), "word", ON_OFF, bare="on"),
    Flag(("--no-kv-offload", "-nkvo"), "switch"),
    Flag(("--tensor-split", "-ts"), "text"),
    Flag(("--split-mode", "-sm"), "word", ("layer", "none")),
    Flag(("--device", "-dev"), "text"),
    Flag(("--fit", "-fit"), "word", ("on", "off"), bare="on"),
    Flag(("--no-mmap",), "switch"),
    Flag(("--mlock",), "switch"),
    Flag(("--run-time-repack", "-rtr"), "switch"),
    Flag(("--no-op-offload",), "switch"),
    Flag(("--model", "-m", "--hf-repo", "-hf", "-hfr"), refused="the model is TARGET; remove the flag"),
    *(
        Flag(names, refused=f"speculative decoding {NOT_MODELLED}")
        for names in (
            ("--model-draft", "-md"), ("--draft-max", "--draft", "--draft-n"), ("--draft-min", "--draft-n-min"),
            ("--draft-p-min",), ("--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"), ("--ctx-size-draft", "-cd"),
            ("--device-draft", "-devd"), ("--cache-type-k-draft", "-ctkd"), ("--cache-type-v-draft", "-ctvd"),
        )
    ),
    Flag(("--mmproj", "-mm"), refused=f"the encoder of images {NOT_MODELLED}"),
    Flag(("--lora",), refused=f"an adapter {NOT_MODELLED}"),
    Flag(("--control-vector",), refused=f"a control vector {NOT_MODELLED}"),
    Flag(("--rpc",), refused=f"a device of another machine {NOT_MODELLED}"),
    Flag(("--embedding", "--embeddings"), "switch", refused=f"a server of embeddings {NOT_MODELLED}"),
    Flag(("--override-kv",), refused="changes the model; expected --set PATH=VALUE of llmcalc"),
)  # fmt: skip
"""Flags that change memory, and flags that are refused by name."""

_IDLE = (
    ("--threads", "-t"), ("--threads-batch", "-tb"), ("--threads-http",), ("--predict", "-n", "--n-predict"),
    ("--seed", "-s"), ("--host",), ("--port",), ("--path",), ("--api-key",), ("--api-key-file",), ("--alias", "-a"),
    ("--chat-template",), ("--chat-template-file",), ("--chat-template-kwargs",), ("--reasoning-format",),
    ("--reasoning-budget",), ("--main-gpu", "-mg"), ("--numa",), ("--temp", "--temperature"), ("--top-k",),
    ("--top-p",), ("--min-p",), ("--repeat-penalty",), ("--presence-penalty",), ("--frequency-penalty",),
    ("--rope-scaling",), ("--rope-scale",), ("--rope-freq-base",), ("--rope-freq-scale",), ("--yarn-orig-ctx",),
    ("--yarn-ext-factor",), ("--yarn-attn-factor",), ("--yarn-beta-slow",), ("--yarn-beta-fast",), ("--keep",),
    ("--defrag-thold", "-dt"), ("--timeout", "-to"), ("--slot-save-path",), ("--log-file",), ("--prio",), ("--poll",),
    ("--cache-reuse",), ("--ctx-checkpoints", "-ctxcp"), ("--cache-ram", "-cram"),
    ("--slot-prompt-similarity", "-sps"), ("--samplers",), ("--prompt", "-p"), ("--file", "-f"),
)  # fmt: skip

_IDLE_SWITCHES = (
    ("--mmap",), ("--kv-offload", "-kvo"), ("--cont-batching", "-cb"), ("--no-cont-batching", "-nocb"),
    ("--no-warmup",), ("--warmup",), ("--jinja",), ("--metrics",), ("--slots",), ("--no-slots",), ("--verbose", "-v"),
    ("--log-disable",), ("--context-shift",), ("--no-context-shift",), ("--webui",), ("--no-webui",),
    ("--ignore-eos",), ("--conversation", "-cnv"), ("--no-conversation", "-no-cnv"), ("--escape", "-e"),
    ("--no-perf",), ("--check-tensors",), ("--cache-prompt",), ("--no-cache-prompt",),
)  # fmt: skip

IDLE = (
    *(Flag(names, is_idle=True) for names in _IDLE),
    *(Flag(names, "switch", is_idle=True) for names in _IDLE_SWITCHES),
)
"""Flags that change no memory of the server's buffers."""


def cache_types(*more: str) -> tuple[Flag, Flag]:
    """Returns the flags of the cache's types. more: types that only one engine has."""
    words = (*CACHE_TYPES, *more)
    return Flag(("--cache-type-k", "-ctk"), "word", words), Flag(("--cache-type-v", "-ctv"), "word", words)
