"""The registry record of open-instruct's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "open-instruct",
    "a config of open-instruct",
    FromFile(__package__, "config_file:is_open_instruct"),
    FromFile(__package__, "config_file:read_open_instruct"),
    program="open-instruct",
    version="2026-08-20",
)
