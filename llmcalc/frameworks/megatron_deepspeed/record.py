"""The registry record of Megatron-DeepSpeed's launch commands."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "megatron-deepspeed",
    "a command of Megatron-DeepSpeed",
    runs=FromFile(__package__, "command:starts_program"),
    read_command=FromFile(__package__, "command:read_command"),
    program="Megatron-DeepSpeed",
    version="f4157be (2024-12-24)",
)
