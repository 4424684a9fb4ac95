"""A server of ik_llama.cpp, with the memory rules of its version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from ..engines.versions import read_engine_record
from ..ggml.server import GgmlServer
from ..ggml.versions import GgmlEngineRecord


@cache
def read_record() -> GgmlEngineRecord:
    """Returns the contents of `presets/engines/ik_llama_cpp.toml`."""
    return read_engine_record(GgmlEngineRecord, "ik_llama_cpp")


class IkLlamaCppServer(GgmlServer):
    """A server of ik_llama.cpp with the fork's flags."""

    name = "ik_llama.cpp"


def create_server(preset: Preset, hardware: Hardware, version: EngineVersion, flags: Mapping[str, Any]) -> GgmlServer:
    """Returns a server of ik_llama.cpp. Raises `InputError` for flags that contradict each other or the model."""
    return IkLlamaCppServer(preset, hardware, version, flags, read_record())
