"""The flags of ik_llama.cpp's `llama-server` (common/common.cpp, `gpt_params_find_arg`)."""

from __future__ import annotations

from ..engines.flags import Flag, idle_flags, refused_flags
from ..ggml.flags import IDLE, SHARED_FLAGS, cache_types

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
    *SHARED_FLAGS,
    *cache_types("q6_0", "q8_kv"),
    Flag(("--mla-use", "-mla"), "number", least=0, most=3),
    Flag(("--attention-max-batch", "-amb"), "number", least=0, most=10**6),
    Flag(("--fused-moe", "-fmoe"), "switch", off=("-no-fmoe",)),
    Flag(("--fit-margin",), "number", least=0, most=10**7),
    *refused_flags("GPUs of a graph", "--max-gpu"),
    *refused_flags("compressed windows", switches="--swa-compress"),
    *refused_flags(
        "types of single layers",
        "--cache-type-k-first|-ctk-first --cache-type-k-last|-ctk-last --cache-type-v-first|-ctv-first "
        "--cache-type-v-last|-ctv-last",
    ),
    *refused_flags(
        "speculative decoding",
        """
        --spec-type --spec-stage --model-draft|-md --draft-max|--draft|--draft-n
        --n-gpu-layers-draft|--gpu-layers-draft|-ngld --ctx-size-draft|-cd --device-draft|-devd
        --cache-type-k-draft|-ctkd --cache-type-v-draft|-ctvd --draft-params|-draft
        --mtp-requantize-output-tensor|-mtprot
        """,
        switches="--multi-token-prediction|-mtp",
    ),
    *refused_flags("another size of the graph", "--worst-graph-tokens|-wgt"),
    Flag(("--gpu-fit-margin", "-gfm"), refused="a margin of each GPU: not modelled; expected --fit-margin"),
    *refused_flags(
        "the selection of tokens",
        "--dsa-top-k|-dsatk --indexer-cache-type-k|-ictk",
        switches="--dsa|-dsa --fused-indexer-topk|-fidx",
    ),
    *refused_flags("experts that are loaded later", switches="--defer-experts --prefetch-experts"),
    *idle_flags(WITH_VALUE),
    *idle_flags(SWITCHES, "switch"),
    *IDLE,
)


def flags() -> tuple[Flag, ...]:
    """Returns all flags of the ik_llama.cpp server."""
    return FLAGS
