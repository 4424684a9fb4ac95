"""The registry record of FastChat's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "fastchat",
    "a command of FastChat's or Qwen's training script",
    runs=FromFile(__package__, "command:starts_program"),
    read_command=FromFile(__package__, "command:read_command"),
    program="FastChat",
    version="0.2.36",
)
