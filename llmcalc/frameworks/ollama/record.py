"""Registers Ollama as a serving engine: options, memory functions, and the usual format of its models."""

from __future__ import annotations

from ...sources.library_tags import USUAL_SCHEME
from ..framework import LazyFunction
from ..ggml.engine import ggml_engine

LIBRARY_FORMAT_NOTE = (
    "weights in q4_k_m, as most tags without a format have (see `ollama show`; for fp16: --quantize none)"
)
"""Note on a model whose weight format is not stated anywhere."""

ENGINE = ggml_engine(
    __package__,
    "ollama",
    "Ollama",
    flags_by_option={
        "--seq": "--num-ctx",
        "-s": "--num-ctx",
        "--kv-dtype": "OLLAMA_KV_CACHE_TYPE",
        "--users": "OLLAMA_NUM_PARALLEL",
        "--devices": "CUDA_VISIBLE_DEVICES",
    },
    server_factory="OllamaServer",
    engine_functions=(__package__, "server"),
    usual_scheme=(USUAL_SCHEME, LIBRARY_FORMAT_NOTE),
    default_context=LazyFunction(__package__, "server:default_context"),
    tag_flags=LazyFunction(__package__, "server:tag_flags"),
)
