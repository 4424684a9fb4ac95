"""The registry record of axolotl: how its config files are recognized and read."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "axolotl",
    "a config of axolotl",
    FromFile(__package__, "config_file:is_axolotl"),
    FromFile(__package__, "config_file:read_axolotl"),
    program="axolotl",
    version="0.18.0",
)
