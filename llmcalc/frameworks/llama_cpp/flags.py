"""The flags of `llama-server` (common/arg.cpp)."""

from __future__ import annotations

from ..engines.flags import Flag
from ..ggml.flags import CACHE_TYPES, MEMORY_NEUTRAL_FLAGS, SHARED_FLAGS, cache_types

DRAFTING_FLAGS = (
    Flag(("--spec-type",), "text"),
    Flag(("--draft-max", "--draft", "--draft-n", "--spec-draft-n-max"), "number", minimum=0, maximum=10**4),
    Flag(("--spec-ngram-mod-n-max",), "number", minimum=0, maximum=1024),
    Flag(("--spec-ngram-simple-size-m",), "number", maximum=1024),
    Flag(("--spec-ngram-map-k-size-m",), "number", maximum=1024),
    Flag(("--spec-ngram-map-k4v-size-m",), "number", maximum=1024),
    Flag(("--model-draft", "-md", "--spec-draft-model", "--hf-repo-draft", "-hfd", "-hfrd", "--spec-draft-hf"), "text"),
    Flag(
        ("--n-gpu-layers-draft", "--gpu-layers-draft", "-ngld", "--spec-draft-ngl"),
        "number", ("auto", "all"), minimum=-2, maximum=10**6,
    ),
    Flag(("--cache-type-k-draft", "-ctkd", "--spec-draft-type-k"), "word", CACHE_TYPES),
    Flag(("--cache-type-v-draft", "-ctvd", "--spec-draft-type-v"), "word", CACHE_TYPES),
    Flag(("--device-draft", "-devd", "--spec-draft-device"), "text"),
    Flag(("--override-tensor-draft", "-otd", "--spec-draft-override-tensor"), "text", is_repeatable=True),
    Flag(
        ("--n-cpu-moe-draft", "-ncmoed", "--spec-draft-ncmoe", "--spec-draft-n-cpu-moe"),
        "number", minimum=0, maximum=10**6,
    ),
    Flag(("--cpu-moe-draft", "-cmoed", "--spec-draft-cpu-moe"), "switch"),
    Flag(
        ("--ctx-size-draft", "-cd"),
        refusal_reason="the draft has the model's context in newer builds; remove the flag",
    ),
)  # fmt: skip
"""Flags of speculative decoding, which ../ggml/speculation.py evaluates."""

FLAGS = (
    *SHARED_FLAGS,
    *cache_types(),
    *DRAFTING_FLAGS,
    Flag(("--kv-unified", "-kvu"), "switch", disabling_spellings=("-no-kvu",)),
    Flag(("--kv-unified-per-slot",), "tokens", maximum=10**9),
    Flag(("--swa-full",), "switch"),
    Flag(("--fit-ctx", "-fitc"), "tokens", maximum=10**9),
    Flag(("--fit-target", "-fitt"), "text"),
    *MEMORY_NEUTRAL_FLAGS,
)


def flags() -> tuple[Flag, ...]:
    """Returns all flags of llama-server."""
    return FLAGS
