"""The registry record of GPT-NeoX's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "gpt-neox",
    "a config of GPT-NeoX",
    FromFile(__package__, "config_file:is_gpt_neox"),
    FromFile(__package__, "config_file:read_gpt_neox"),
    program="GPT-NeoX",
    version="2.0 (2026-05-19)",
)
