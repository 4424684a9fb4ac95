"""The flags of ik_llama.cpp's `llama-server` (common/common.cpp, `gpt_params_find_arg`)."""

from __future__ import annotations

from ..engines.flags import Flag, memory_neutral_flags_of_engine, refused_flags
from ..ggml.flags import MEMORY_NEUTRAL_FLAGS, SHARED_FLAGS, cache_types

FLAGS = (
    *SHARED_FLAGS,
    *cache_types("q6_0", "q8_kv"),
    Flag(("--mla-use", "-mla"), "number", minimum=0, maximum=3),
    Flag(("--attention-max-batch", "-amb"), "number", minimum=0, maximum=10**6),
    Flag(("--fused-moe", "-fmoe"), "switch", disabling_spellings=("-no-fmoe",)),
    Flag(("--fit-margin",), "number", minimum=0, maximum=10**7),
    *refused_flags("GPUs of a graph", "--max-gpu"),
    *refused_flags("compressed windows", switch_names="--swa-compress"),
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
        switch_names="--multi-token-prediction|-mtp",
    ),
    *refused_flags("another size of the graph", "--worst-graph-tokens|-wgt"),
    Flag(("--gpu-fit-margin", "-gfm"), refusal_reason="a margin of each GPU: not modelled; expected --fit-margin"),
    *refused_flags(
        "the selection of tokens",
        "--dsa-top-k|-dsatk --indexer-cache-type-k|-ictk",
        switch_names="--dsa|-dsa --fused-indexer-topk|-fidx",
    ),
    *refused_flags("experts that are loaded later", switch_names="--defer-experts --prefetch-experts"),
    *memory_neutral_flags_of_engine(__file__),
    *MEMORY_NEUTRAL_FLAGS,
)


def flags() -> tuple[Flag, ...]:
    """Returns all flags of the ik_llama.cpp server."""
    return FLAGS
