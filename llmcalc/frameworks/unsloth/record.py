"""Unsloth: the record of its config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "unsloth",
    "model defaults of Unsloth",
    FromFile(__package__, "config_file:is_unsloth"),
    FromFile(__package__, "config_file:read_unsloth"),
    program="Unsloth",
    version="2026",
)
