"""Registers Ollama as a serving engine: options, memory functions, and the usual format of its models."""

from __future__ import annotations

from ..framework import LazyFunction
from ..ggml.engine import ggml_engine

LIBRARY_SCHEME = "q4_k_m"
"""The format of most tags of the library without one (README.md of Ollama, "Model library": Llama 3.3 70B in 43 GB, Phi
4 14B in 9.1 GB). Others are in `SCHEME_BY_LIBRARY_NAME`: older ones in q4_0 (`llama3:8b`, ollama/ollama#4626), small
ones in q8_0 (`llama3.2:1b`, #12887).
"""

LIBRARY_HEADING = "weights in q4_k_m, as most tags without a format have (see `ollama show`; for fp16: --quantize none)"
"""The remark on a model for which nothing states the format of the weights."""

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
    usual_scheme=(LIBRARY_SCHEME, LIBRARY_HEADING),
    devices_example="CUDA_VISIBLE_DEVICES=0,1",
    default_context=LazyFunction(__package__, "server:default_context"),
)
