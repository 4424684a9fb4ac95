"""The record of Ollama."""

from __future__ import annotations

from ..engines.engine import Engine
from ..framework import FromFile

ENGINE = Engine(
    name="ollama",
    title="Ollama",
    flags=FromFile(__package__, "flags:flags"),
    version=FromFile(__package__, "server:version_of"),
    memory=FromFile(__package__, "server:memory"),
    candidates=FromFile(__package__, "server:candidates"),
    layouts=FromFile(__package__, "server:layouts"),
    instead={"--seq": "--num-ctx", "-s": "--num-ctx", "--kv-dtype": "OLLAMA_KV_CACHE_TYPE"},
    serving=FromFile(__package__, "server:serving"),
    vendors=("NVIDIA", "AMD", "Apple", "Intel"),
    stacks=(((0,), "llamacpp"),),
)
