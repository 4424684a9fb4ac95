"""A server of llama.cpp, with the memory rules of its version."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

from ...accelerator import Hardware
from ...errors import InputError
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from ..engines.versions import read_engine_record
from ..ggml.architectures import check_architecture, check_encoder
from ..ggml.encoder import has_encoder
from ..ggml.server import GgmlServer
from ..ggml.settings import refuse_gpu_flags
from ..ggml.versions import GgmlEngineRecord

ENCODER_OF_REPOSITORY = "F16"
"""Number format of the encoder file that comes with a repository's GGUF files (-hf)."""


@cache
def read_record() -> GgmlEngineRecord:
    """Returns the contents of `presets/engines/llama_cpp.toml`."""
    return read_engine_record(GgmlEngineRecord, "llama_cpp")


def check_model(preset: Preset, engine_version: EngineVersion) -> None:
    """Raises `InputError` for a model that the version has no architecture for."""
    check_architecture(preset, read_record(), engine_version)


def create_server(
    preset: Preset, hardware: Hardware, engine_version: EngineVersion, flags: Mapping[str, Any]
) -> GgmlServer:
    """Returns a llama.cpp server for a model, an accelerator, a version and flags.

    Raises `InputError` for flags that contradict each other, and for a model that the version does not run.
    """
    check_model(preset, engine_version)
    refuse_gpu_flags(hardware, flags)
    encoder_file = flags.get("mmproj") or flags.get("mmproj_url")
    if encoder_file:
        check_encoder(preset, read_record(), engine_version, str(encoder_file))
    elif flags.get("mmproj_auto") and has_encoder(preset):
        with suppress(InputError):  # a repository has no file of an encoder that cannot be converted
            check_encoder(preset, read_record(), engine_version, ENCODER_OF_REPOSITORY)
            flags = {**flags, "mmproj": ENCODER_OF_REPOSITORY}
    return GgmlServer(preset, hardware, engine_version, flags, read_record())
