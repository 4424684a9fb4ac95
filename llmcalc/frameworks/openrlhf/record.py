"""The registry record of OpenRLHF's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "openrlhf",
    "a command of OpenRLHF",
    runs=FromFile(__package__, "command:starts_program"),
    read_command=FromFile(__package__, "command:read_command"),
    program="OpenRLHF",
    version="0.11.0",
)
