"""Lists the kinds of launch files: one per framework, and those of programs that run several frameworks."""

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
    program="accelerate",
    version="1.x",
)

TRAINER = LaunchFile(
    "trainer",
    "arguments of the Trainer",
    FromFile(__package__, "trainer:is_trainer"),
    FromFile(__package__, "trainer:read_trainer"),
    arguments_of="the Trainer",
    is_run_by=FromFile(__package__, "trainer:is_run_by"),
    read_arguments=FromFile(__package__, "trainer:read_arguments"),
    program="transformers",
    version="5.23",
)

PROGRAMS = (
    "axolotl",
    "llama_factory",
    "torchtune",
    "litgpt",
    "open_instruct",
    "unsloth",
    "olmo",
    "llm_foundry",
    "trl",
    "deepspeed_chat",
    "gpt_neox",
    "fastchat",
    "megatron_bridge",
    "megatron_deepspeed",
    "ms_swift",
    "nanogpt",
    "nemo",
    "openrlhf",
    "pai_megatron",
    "verl",
)
"""Programs that train with a framework, each the name of a folder whose `record.py` has a `LAUNCH_FILE`."""


@cache
def program_files() -> tuple[LaunchFile, ...]:
    """Returns the kinds of launch files of programs that train with a framework, and of programs that are refused."""
    records = (import_module(f"..{name}.record", __package__).LAUNCH_FILE for name in PROGRAMS)
    return (*records, *REFUSED)


@cache
def _framework_files() -> tuple[LaunchFile, ...]:
    """Returns the kinds of launch files of frameworks, and of files that select a framework."""
    files = (framework(name).launch_file for name in NAMES)
    return (*(file for file in files if file is not None), ACCELERATE, TRAINER)


def kinds() -> tuple[LaunchFile, ...]:
    """Returns all kinds of launch files, in the order in which a file is compared with them."""
    return (*program_files(), *_framework_files())


def launch_files() -> str:
    """Returns the titles of the kinds of launch files with tables, as text for messages."""
    *titles, last_title = (kind.title for kind in (*_framework_files(), *program_files()) if kind.read is not None)
    return f"{', '.join(titles)} or {last_title}"
