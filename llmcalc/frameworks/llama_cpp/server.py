"""A server of llama.cpp, with the memory rules of its version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from ..engines.versions import read_engine_record
from ..ggml import changes
from ..ggml.functions import ServerFunctions
from ..ggml.server import GgmlServer
from ..ggml.versions import GgmlRecord


@cache
def record() -> GgmlRecord:
    """Returns the contents of `presets/engines/llama_cpp.toml`."""
    return read_engine_record(GgmlRecord, "llama_cpp")


def version_of(version_text: str) -> EngineVersion:
    """Returns the build that a user wrote, or the newest, with its range of versions."""
    return record().version_of(version_text)


def server(preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]) -> GgmlServer:
    """Returns a server of llama.cpp. Raises `InputError` for flags that contradict each other or the model."""
    return GgmlServer(preset, hardware, version, flags, record())


_FUNCTIONS = ServerFunctions(server)

memory, candidates, layouts, serving = (
    _FUNCTIONS.memory,
    _FUNCTIONS.candidates,
    _FUNCTIONS.layouts,
    changes.serving,
)
