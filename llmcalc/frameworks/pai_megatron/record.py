"""The registry record of Pai-Megatron-Patch's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "pai-megatron-patch",
    "a command of Pai-Megatron-Patch",
    runs=FromFile(__package__, "command:starts_program"),
    read_command=FromFile(__package__, "command:read_command"),
    program="Pai-Megatron-Patch",
    version="a098ca5 (2025-12-15)",
)
