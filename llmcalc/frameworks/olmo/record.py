"""The registry record of OLMo's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "olmo",
    "a config of OLMo",
    FromFile(__package__, "config_file:is_olmo"),
    FromFile(__package__, "config_file:read_olmo"),
    program="OLMo",
    version="0.6.0",
)
