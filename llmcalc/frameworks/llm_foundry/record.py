"""The registry record of LLM Foundry's config files."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "llm-foundry",
    "a config of LLM Foundry",
    FromFile(__package__, "config_file:is_llm_foundry"),
    FromFile(__package__, "config_file:read_llm_foundry"),
    program="LLM Foundry",
    version="0.22",
)
