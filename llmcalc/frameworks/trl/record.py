"""The registry record of TRL's config files."""

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
