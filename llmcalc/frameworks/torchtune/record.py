"""The registry record of torchtune's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "torchtune",
    "a recipe of torchtune",
    FromFile(__package__, "config_file:is_torchtune"),
    FromFile(__package__, "config_file:read_torchtune"),
    program="torchtune",
    version="0.7.0",
)
