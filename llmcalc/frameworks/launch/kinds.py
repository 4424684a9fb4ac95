"""The kinds of launch files: one per framework, and those of programs that run several frameworks."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from ..framework import FromFile
from ..registry import NAMES, framework
from .record import LaunchFile
from .refused_programs import REFUSED

ACCELERATE = LaunchFile(
    "accelerate",
    "a config of accelerate",
    FromFile(__package__, "accelerate:is_accelerate"),
    FromFile(__package__, "accelerate:read_accelerate"),
)

TRAINER = LaunchFile(
    "trainer",
    "arguments of the Trainer",
    FromFile(__package__, "trainer:is_trainer"),
    FromFile(__package__, "trainer:read_trainer"),
    arguments_of="the Trainer",
    is_run_by=FromFile(__package__, "trainer:is_run_by"),
    read_arguments=FromFile(__package__, "trainer:read_arguments"),
)


PROGRAMS = (
    "deepspeed_chat",
    "fastchat",
    "megatron_bridge",
    "megatron_deepspeed",
    "ms_swift",
    "nanogpt",
    "openrlhf",
    "pai_megatron",
    "verl",
)
"""Programs that run a framework with arguments of their own, each the name of a folder of `frameworks`."""


@cache
def programs() -> tuple[LaunchFile, ...]:
    """The kinds of launch files of programs that run a framework."""
    package = __package__.rpartition(".")[0] if __package__ else ""
    records = (import_module(f".{name}.record", package).LAUNCH_FILE for name in PROGRAMS)
    return (*records, *REFUSED)


@cache
def kinds() -> tuple[LaunchFile, ...]:
    """All kinds of launch files, in the order in which a file is compared with them."""
    framework_files = (framework(name).launch_file for name in NAMES)
    return (*programs(), *(file for file in framework_files if file is not None), ACCELERATE, TRAINER)


def launch_files() -> str:
    """The titles of the kinds of launch files with tables, for messages."""
    *titles, last = (kind.title for kind in kinds() if kind.read is not None)
    return f"{', '.join(titles)} or {last}"
