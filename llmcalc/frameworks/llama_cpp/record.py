"""Registers llama.cpp as a serving engine: flags, memory functions and versions."""

from __future__ import annotations

from ..ggml.engine import ggml_engine

ENGINE = ggml_engine(
    __package__,
    "llama.cpp",
    "llama.cpp",
    flags_by_option={
        "--seq": "--ctx-size",
        "--context": "--ctx-size",
        "--users": "--parallel",
        "--kv-dtype": "--cache-type-k --cache-type-v",
        "--devices": "--device",
    },
    shows_alternatives=True,
    shown_defaults=("--ctx-size", "--ubatch-size"),
)
