"""The registry record of LLaMA-Factory's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "llama-factory",
    "a config of LLaMA-Factory",
    FromFile(__package__, "config_file:is_llama_factory"),
    FromFile(__package__, "config_file:read_llama_factory"),
    program="LLaMA-Factory",
    version="0.9.6",
)
