"""The registry record of nanoGPT's configurations and launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "nanogpt",
    "a configuration of nanoGPT in Python",
    runs=FromFile(__package__, "config_file:starts_program"),
    read_command=FromFile(__package__, "config_file:read_command"),
    is_python=FromFile(__package__, "config_file:is_python"),
    read_python=FromFile(__package__, "config_file:read_python"),
    program="nanoGPT",
    version="3adf61e (2025-11-12)",
)
