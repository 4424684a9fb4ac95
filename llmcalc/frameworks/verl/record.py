"""The registry record of verl's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "verl",
    "a command of verl",
    runs=FromFile(__package__, "command:starts_program"),
    read_command=FromFile(__package__, "command:read_command"),
    program="verl",
    version="0.8.0.dev",
)
