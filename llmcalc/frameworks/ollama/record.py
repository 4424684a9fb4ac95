"""The registry record of Ollama."""

from __future__ import annotations

from ..ggml.engine import ggml_engine

ENGINE = ggml_engine(
    __package__,
    "ollama",
    "Ollama",
    flags_by_option={
        "--seq": "--num-ctx",
        "-s": "--num-ctx",
        "--kv-dtype": "OLLAMA_KV_CACHE_TYPE",
        "--users": "OLLAMA_NUM_PARALLEL",
    },
    server_factory="OllamaServer",
    engine_functions=(__package__, "server"),
)
