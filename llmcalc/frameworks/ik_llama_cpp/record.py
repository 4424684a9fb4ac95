"""Registers ik_llama.cpp as a serving engine: flags, memory functions and versions."""

from __future__ import annotations

from ..ggml.engine import LLAMA_SERVER, ggml_engine

ENGINE = ggml_engine(__package__, "ik_llama.cpp", "ik_llama.cpp", **LLAMA_SERVER)
