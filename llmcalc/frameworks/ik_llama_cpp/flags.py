"""The flags of ik_llama.cpp's `llama-server` (common/common.cpp, `gpt_params_find_arg`)."""

from __future__ import annotations

from ..engines.flags import Flag, idle_flags
from ..ggml.flags import IDLE, NOT_MODELLED, SHARED, cache_types

WITH_VALUE = """
    --smart-expert-reduction|-ser --cuda-params|-cuda --offload-policy|-op --threads-mtmd|-tm --mtmd-kq-type
    --max-extra-alloc|-mea --graph-reduce-type|-grt --graph-attn-precision|-gap --fused-delta-net|-fdn
    --spec-ckpt-mode|--recurrent-ckpt-mode --ctx-checkpoints|-ctx-ckpt --ctx-checkpoints-interval|-ctx-ckpt-i
    --ctx-checkpoints-tolerance|-ctx-ckpt-t --ctx-checkpoints-eviction|-ctx-ckpt-e --cache-ram-similarity|-crs
    --cache-ram-n-min|-cram-n-min --prefetch-experts-threads --banned-string-file --banned-n
    --allowlist-unicode-rule --allowlist-pieces --allowlist-keyword --allowlist-keyword-delay
    --expiring-logit-bias-file --reasoning-tokens --system-prompt-file|-spf --log-format --logdir|-ld
    --sql-save-file --sqlite-zstd-ext-file --tfs
    """
"""Flags with a value that change no memory of the server's buffers."""

SWITCHES = """
    --grouped-expert-routing|-ger --graph-reuse|-gr --no-graph-reuse|-no-gr --k-cache-hadamard|-khad
    --v-cache-hadamard|-vhad --merge-qkv|-mqkv --merge-up-gate-experts|-muge --no-fused-up-gate|-no-fug
    --no-fused-mul-multiadd|-no-mmad --rope-cache|-rcache --transparent-huge-pages|-thp --warmup-batch|-wb
    --no-offload-only-active-experts|-no-ooae --split-mode-graph-scheduling|-smgs --split-mode-f16|-smf16
    --split-mode-f32|-smf32 --scheduler-async|-sas --validate-quants|-vq --no-multi-token-prediction|-no-mtp
    --adaptive-updt-w-cur --spec-autotune --parallel-tool-calls|-ptcall --peg --send-done --minilog --verbose-prompt
    --penalize-nl
    """
"""Flags without a value that change no memory of the server's buffers."""

FLAGS = (
    *SHARED,
    *cache_types("q6_0", "q8_kv"),
    Flag(("--mla-use", "-mla"), "number", least=0, most=3),
    Flag(("--attention-max-batch", "-amb"), "number", least=0, most=10**6),
    Flag(("--fused-moe", "-fmoe"), "switch", off=("-no-fmoe",)),
    Flag(("--max-gpu",), refused=f"GPUs of a graph {NOT_MODELLED}"),
    Flag(("--fit-margin",), "number", least=0, most=10**7),
    Flag(("--swa-compress",), "switch", refused=f"compressed windows {NOT_MODELLED}"),
    *(
        Flag(names, refused=f"types of single layers {NOT_MODELLED}")
        for names in (
            ("--cache-type-k-first", "-ctk-first"), ("--cache-type-k-last", "-ctk-last"),
            ("--cache-type-v-first", "-ctv-first"), ("--cache-type-v-last", "-ctv-last"),
        )
    ),
    *(
        Flag(names, refused=f"speculative decoding {NOT_MODELLED}")
        for names in (
            ("--spec-type",), ("--spec-stage",), ("--model-draft", "-md"), ("--draft-max", "--draft", "--draft-n"),
            ("--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld"), ("--ctx-size-draft", "-cd"),
            ("--device-draft", "-devd"), ("--cache-type-k-draft", "-ctkd"), ("--cache-type-v-draft", "-ctvd"),
            ("--draft-params", "-draft"), ("--mtp-requantize-output-tensor", "-mtprot"),
        )
    ),
    Flag(("--multi-token-prediction", "-mtp"), "switch", refused=f"speculative decoding {NOT_MODELLED}"),
    Flag(("--worst-graph-tokens", "-wgt"), refused=f"another size of the graph {NOT_MODELLED}"),
    Flag(("--gpu-fit-margin", "-gfm"), refused=f"a margin of each GPU {NOT_MODELLED}; expected --fit-margin"),
    *(
        Flag(names, "switch", refused=f"the selection of tokens {NOT_MODELLED}")
        for names in (("--dsa", "-dsa"), ("--fused-indexer-topk", "-fidx"))
    ),
    *(
        Flag(names, refused=f"the selection of tokens {NOT_MODELLED}")
        for names in (("--dsa-top-k", "-dsatk"), ("--indexer-cache-type-k", "-ictk"))
    ),
    *(
        Flag((name,), "switch", refused=f"experts that are loaded later {NOT_MODELLED}")
        for name in ("--defer-experts", "--prefetch-experts")
    ),
    *idle_flags(WITH_VALUE),
    *idle_flags(SWITCHES, "switch"),
    *IDLE,
)  # fmt: skip


def flags() -> tuple[Flag, ...]:
    """Returns all flags of ik_llama.cpp's server."""
    return FLAGS
