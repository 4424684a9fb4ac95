"""The record of ik_llama.cpp."""

from __future__ import annotations

from ..engines.engine import Engine
from ..framework import FromFile

ENGINE = Engine(
    name="ik_llama.cpp",
    title="ik_llama.cpp",
    flags=FromFile(__package__, "flags:flags"),
    version=FromFile(__package__, "server:version_of"),
    memory=FromFile(__package__, "server:memory"),
    candidates=FromFile(__package__, "server:candidates"),
    layouts=FromFile(__package__, "server:layouts"),
    instead={"--seq": "--ctx-size", "--kv-dtype": "--cache-type-k", "--context": "--ctx-size"},
    serving=FromFile(__package__, "server:serving"),
    vendors=("NVIDIA", "AMD", "Apple", "Intel"),
    shows_alternatives=True,
    shown_defaults=("--ctx-size", "--ubatch-size"),
    stacks=(((0,), "llamacpp"),),
)
