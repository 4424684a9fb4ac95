"""Flags of `sglang.launch_server` since 0.5.11 (arg_groups/fields in 0.5.23)."""

from __future__ import annotations

from ..engines.flags import Flag, refused_flags

REFUSED_FLAGS = """
    --dcp-size --dcp-comm-backend --dwdp-size --paged-experts-num-resident --ple-offload-backend --ple-offload-dir
    --kv-canary --linear-replayssm-cache-len --qsa-indexer-dtype --speculative-draft-kv-cache-dtype
    --speculative-draft-window-size --speculative-draft-sink-size --uno-lora-path --shared-experts-tp-size
    --dsv4-attn-backend --swa-prefix-tails --weight-cache-mode --cp-strategy --attn-dp-size --c128-page-size
    --max-ep-size --elastic-ep-initial-size --ep-join-mode --ep-join-rank-offset --elastic-ep-scale-timeout
    --decoupled-spec-role --disaggregation-decode-extra-slots
    """
"""Flags, each with a value, that change memory and are not modelled."""

REFUSED_SWITCHES = """
    --dcp-replicate-q-proj --enable-kv-cache-sharding --enable-dsa-cache-layer-split --enable-unified-memory
    --enable-paged-experts --ple-offload-embedding --prefill-only-disable-kv-cache --enable-int8-mamba-checkpoint
    --enable-linear-replayssm --enable-linear-replayssm-spec --lora-use-virtual-experts
    --enable-shared-experts-attn-tp --enable-dense-mlp-attn-tp --enable-cp-decode-attn-tp
    --enable-decoder-swa-bounded-replay --enable-encoder-swa-bounded-replay
    --enable-prefill-cp --enable-tp-lm-head-all-to-all --enable-w4a4-mxfp4-megamoe
    --speculative-enable-w4a4-mxfp4-megamoe --enable-unified-cache-external-linker --enable-pd-role-switch
    --speculative-adaptive
    """
"""Switches (flags without a value) that change memory and are not modelled."""

NEWER_FLAGS = (
    Flag(("--language-model-only",), "switch"),
    # on NVIDIA the pool of indexer keys in fp4 keeps the estimate of those in fp8 (DSV4PoolConfigurator)
    Flag(("--enable-deepseek-v4-fp4-indexer",), "switch", is_memory_neutral=True),
    Flag(("--mm-feature-transport",), "word", ("cpu", "cuda_ipc", "cuda_vmm")),
    *refused_flags("what it changes in memory", REFUSED_FLAGS, switch_names=REFUSED_SWITCHES),
)
