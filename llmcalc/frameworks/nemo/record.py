"""The registry record of NeMo's YAML configs."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "nemo",
    "a config of NeMo",
    FromFile(__package__, "config_file:is_nemo"),
    FromFile(__package__, "config_file:read_nemo"),
    program="NeMo",
    version="2.x (2025)",
)
