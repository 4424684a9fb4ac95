"""The registry record of DeepSpeed-Chat's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "deepspeed-chat",
    "a command of DeepSpeed-Chat",
    runs=FromFile(__package__, "command:starts_program"),
    read_command=FromFile(__package__, "command:read_command"),
    program="DeepSpeed-Chat",
    version="83757d9 (2025-02-11)",
)
