"""The flags that llama-server and ik_llama.cpp share (common/arg.cpp): those with an effect, and refused ones."""

from __future__ import annotations

from ..engines.flags import Flag, memory_neutral_flags_of_engine, refused_flags

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")

LOAD_MODES = ("auto", "none", "mmap", "mlock", "mmap+mlock", "dio")

ON_OFF_WORDS = ("on", "off", "auto", "1", "0")

MODEL_FLAG_NAMES = "--model -m --hf-repo -hf -hfr --hf-file -hff --model-url -mu --docker-repo -dr"

SHARED_FLAGS = (
    Flag(("--ctx-size", "-c"), "tokens", minimum=0, maximum=10**9),
    Flag(("--n-gpu-layers", "--gpu-layers", "-ngl"), "number", ("auto", "all"), minimum=-2, maximum=2**31 - 1),
    Flag(("--n-cpu-moe", "-ncmoe"), "number", minimum=0, maximum=10**6),
    Flag(("--cpu-moe", "-cmoe"), "switch"),
    Flag(("--n-cpu-ffn", "-ncffn"), "number", minimum=0, maximum=10**6),
    Flag(("--override-tensor", "-ot"), "text", is_repeatable=True),
    Flag(("--ubatch-size", "-ub"), "tokens", maximum=10**7),
    Flag(("--batch-size", "-b"), "tokens", maximum=10**7),
    Flag(("--parallel", "-np"), "number", minimum=-1, maximum=10**4),
    Flag(
        ("--flash-attn", "-fa"), "word", ON_OFF_WORDS, value_if_bare="on",
        disabling_spellings=("-no-fa", "--no-flash-attn"),
    ),
    Flag(("--no-kv-offload", "-nkvo"), "switch"),
    Flag(("--tensor-split", "-ts"), "text"),
    Flag(("--split-mode", "-sm"), "word", ("layer", "none")),
    Flag(("--device", "-dev"), "text"),
    Flag(("--fit", "-fit"), "word", ("on", "off"), value_if_bare="on"),
    Flag(("--no-mmap",), "switch"),
    Flag(("--mlock",), "switch"),
    Flag(("--load-mode", "-lm"), "word", LOAD_MODES),
    Flag(("--run-time-repack", "-rtr"), "switch"),
    Flag(("--no-op-offload",), "switch"),
    Flag(tuple(MODEL_FLAG_NAMES.split()), refusal_reason="the model is TARGET; remove the flag"),
    Flag(("--mmproj", "-mm"), "text"),
    Flag(("--mmproj-url", "-mmu"), "text"),
    Flag(("--mmproj-device", "-mmdev"), "text"),
    Flag(("--mmproj-offload",), "switch"),
    Flag(("--mmproj-auto",), "switch", disabling_spellings=("--no-mmproj",)),
    *refused_flags("adapters", "--lora --lora-scaled"),
    *refused_flags("control vectors", "--control-vector --control-vector-scaled"),
    *refused_flags("a device of another machine", "--rpc"),
    *refused_flags("a server of embeddings", "--pooling", switch_names="--embedding|--embeddings --rerank|--reranking"),
    *refused_flags("sampling on the device", switch_names="--backend-sampling|-bs"),
    *refused_flags("a server of several models", "--models-dir --models-preset"),
    Flag(("--override-kv", "-okv"), refusal_reason="changes the model; expected --set PATH=VALUE of llmcalc"),
)  # fmt: skip
"""Flags that change memory, and flags that are refused by name."""

MEMORY_NEUTRAL_FLAGS = memory_neutral_flags_of_engine(__file__)
"""Flags that change no memory of the server's buffers."""


def cache_types(*other_types: str) -> tuple[Flag, Flag]:
    """Returns the flags for number formats of cached keys and values. other_types: engine-specific formats."""
    type_names = (*CACHE_TYPES, *other_types)
    return Flag(("--cache-type-k", "-ctk"), "word", type_names), Flag(("--cache-type-v", "-ctv"), "word", type_names)
