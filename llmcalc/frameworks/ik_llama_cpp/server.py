"""A server of ik_llama.cpp: the model, the flags, and the memory rules of the version."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ...accelerator import Hardware
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from ..engines.versions import read_engine_record
from ..ggml.architectures import check_architecture
from ..ggml.server import GgmlServer
from ..ggml.settings import refuse_gpu_flags
from ..ggml.versions import GgmlEngineRecord


@cache
def read_record() -> GgmlEngineRecord:
    """Returns the contents of `presets/engines/ik_llama_cpp.toml`."""
    return read_engine_record(GgmlEngineRecord, "ik_llama_cpp")


class IkLlamaCppServer(GgmlServer):
    """A server of ik_llama.cpp, which has flags that llama.cpp does not have."""

    name = "ik_llama.cpp"


def check_model(preset: Preset, engine_version: EngineVersion) -> None:
    """Raises `InputError` for a model that this version does not support."""
    check_architecture(preset, read_record(), engine_version)


def create_server(
    preset: Preset, hardware: Hardware, engine_version: EngineVersion, flags: Mapping[str, Any]
) -> GgmlServer:
    """Returns a server of ik_llama.cpp.

    Raises `InputError` for flags that contradict each other, and for a model that the version does not run.
    """
    check_model(preset, engine_version)
    refuse_gpu_flags(hardware, flags)
    return IkLlamaCppServer(preset, hardware, engine_version, flags, read_record())
