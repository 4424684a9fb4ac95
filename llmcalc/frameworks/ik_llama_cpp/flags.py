"""The flags of ik_llama.cpp's `llama-server` (common/common.cpp, `gpt_params_find_arg`)."""

from __future__ import annotations

from ..engines.flags import Flag
from ..ggml.flags import IDLE, NOT_MODELLED, SHARED, cache_types

FLAGS = (
    *SHARED,
    *cache_types("q6_0", "q8_kv"),
    Flag(("--mla-use", "-mla"), "number", least=0, most=3),
    Flag(("--attention-max-batch", "-amb"), "number", least=0, most=10**6),
    Flag(("--fused-moe", "-fmoe"), "switch"),
    Flag(("--no-fused-moe", "-no-fmoe"), "switch"),
    Flag(("--no-flash-attn", "-no-fa"), "switch"),
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
        Flag(names, is_idle=True)
        for names in (("--smart-expert-reduction", "-ser"), ("--cuda-params", "-cuda"), ("--offload-policy", "-op"))
    ),
    *(
        Flag(names, "switch", is_idle=True)
        for names in (
            ("--grouped-expert-routing", "-ger"), ("--graph-reuse", "-gr"), ("--k-cache-hadamard", "-khad"),
            ("--merge-qkv", "-mqkv"), ("--transparent-huge-pages", "-thp"), ("--warmup-batch", "-wb"),
            ("--no-offload-only-active-experts", "-no-ooae"),
        )
    ),
    *IDLE,
)  # fmt: skip


def flags() -> tuple[Flag, ...]:
    """Returns the flags of ik_llama.cpp."""
    return FLAGS
