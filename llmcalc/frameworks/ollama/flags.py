"""The options of Ollama: parameters of a Modelfile (api/types.go) and environment variables (envconfig/config.go).

On a command line a parameter is a long flag (`--num-ctx 8192`) and a variable is written as in a shell
(`OLLAMA_KV_CACHE_TYPE=q8_0`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..engines.flags import Flag, memory_neutral_flags_of_engine, read_flag_values

YES_NO_WORDS = ("1", "0", "true", "false")

FLAGS = (
    Flag(("--num-ctx",), "tokens", maximum=10**9),
    Flag(("OLLAMA_CONTEXT_LENGTH",), "tokens", minimum=0, maximum=10**9),
    Flag(("OLLAMA_NUM_PARALLEL", "--num-parallel"), "number", minimum=0, maximum=10**4),
    Flag(("OLLAMA_KV_CACHE_TYPE", "--kv-cache-type"), "word", ("f16", "q8_0", "q4_0")),
    Flag(("OLLAMA_FLASH_ATTENTION", "--flash-attention"), "word", YES_NO_WORDS, value_if_bare="1"),
    Flag(("OLLAMA_GPU_OVERHEAD", "--gpu-overhead"), "number", minimum=0, maximum=10**13),
    Flag(("--num-gpu",), "number", minimum=-1, maximum=10**6),
    Flag(("--num-batch",), "number", maximum=10**7),
    Flag(("OLLAMA_SCHED_SPREAD", "--sched-spread"), "word", YES_NO_WORDS, value_if_bare="1"),
    Flag(("--main-gpu",), "number", minimum=0, maximum=10**4),
    Flag(("--use-mmap",), "word", YES_NO_WORDS, value_if_bare="true"),
    Flag(("CUDA_VISIBLE_DEVICES",), "text"),
    *memory_neutral_flags_of_engine(__file__),
)


def flags() -> tuple[Flag, ...]:
    """Returns all options of Ollama in the form of flags."""
    return FLAGS


def read_options(option_values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns field → value of options with names as in Modelfiles (`num_ctx`, `OLLAMA_NUM_PARALLEL`).

    Options that change no memory are left out. Raises `InputError` for an unknown one, with the nearest name.
    """
    return read_flag_values("Ollama", FLAGS, option_values)
