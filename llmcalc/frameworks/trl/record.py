"""The registry record of TRL: how its config files are recognized and read."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "trl",
    "a recipe of TRL",
    FromFile(__package__, "config_file:is_trl"),
    FromFile(__package__, "config_file:read_trl"),
    program="TRL",
    version="1.10",
)
