"""The registry record of ms-swift's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "ms-swift",
    "a command of ms-swift",
    runs=FromFile(__package__, "command:starts_program"),
    trains=FromFile(__package__, "command:trains"),
    read_command=FromFile(__package__, "command:read_command"),
    program="ms-swift",
    version="4.6.0.dev0",
)
