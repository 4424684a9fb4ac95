"""The registry record of Megatron-Bridge's recipes and launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "megatron-bridge",
    "a recipe of Megatron-Bridge in Python",
    runs=FromFile(__package__, "recipe:starts_program"),
    read_command=FromFile(__package__, "recipe:read_command"),
    is_python=FromFile(__package__, "recipe:is_python"),
    read_python=FromFile(__package__, "recipe:read_python"),
    program="Megatron-Bridge",
    version="main (2026-08)",
)
