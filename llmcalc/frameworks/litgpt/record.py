"""The registry record of LitGPT: how its config files are recognized and read."""

from __future__ import annotations

from ..framework import FromFile
from ..launch.record import LaunchFile

LAUNCH_FILE = LaunchFile(
    "litgpt",
    "a config of LitGPT",
    FromFile(__package__, "config_file:is_litgpt"),
    FromFile(__package__, "config_file:read_litgpt"),
    program="LitGPT",
    version="0.5.13",
)
