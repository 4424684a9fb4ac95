"""The registry record of Unsloth's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "unsloth",
    "model defaults of Unsloth, or Python that trains with it",
    FromFile(__package__, "config_file:is_unsloth"),
    FromFile(__package__, "config_file:read_unsloth"),
    is_python=FromFile(__package__, "python_file:is_unsloth_python"),
    read_python=FromFile(__package__, "python_file:read_python"),
    program="Unsloth",
    version="2026",
)
