"""Reads a YAML or JSON file of ms-swift: the arguments of its command, and variables under `ENV`.

Source: ms-swift at 3602360a (2026-08-22), swift/cli/main.py, `parse_yaml_args`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..launch.command_line import CONFIG_ENDINGS
from ..launch.launch_types import CommandLine, Launch, LaunchReader, LaunchSource, Table, read_integer
from ..launch.trainer import IGNORED_TRAINER_ARGUMENTS
from .command import ARGUMENTS_IGNORED, ARGUMENTS_READ
from .command import read_command as read_arguments
from .megatron_command import ARGUMENTS_READ as MEGATRON_READ

TYPE_ARGUMENTS = ("tuner_type", "train_type", "sft_type", "rlhf_type")
"""Arguments by which a config file of ms-swift is recognized."""

MEGATRON_ARGUMENTS = MEGATRON_READ - ARGUMENTS_READ - ARGUMENTS_IGNORED - IGNORED_TRAINER_ARGUMENTS
"""Arguments that only Megatron-SWIFT's commands have."""


def is_ms_swift(config: Table) -> bool:
    """Whether a table has the arguments of a command of ms-swift."""
    return any(argument_name in config for argument_name in TYPE_ARGUMENTS)


def read_ms_swift(config: Table, source_file: LaunchSource) -> Launch:
    """Returns the training run of a file with the arguments of `swift` or `megatron`. Raises `InputError`."""
    program = "megatron" if any(argument_name in config for argument_name in MEGATRON_ARGUMENTS) else "swift"
    command = CommandLine((), f"{program} {'rlhf' if 'rlhf_type' in config else 'sft'}", ())
    return _read_command_with_file(config, command, source_file)


def read_command(command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the training run of a command, whose first word may be a config file. Raises `InputError`."""
    words = command_line.words
    if not words or not words[0].endswith(CONFIG_ENDINGS):
        return read_arguments(command_line, source_file)
    config = LaunchReader(source_file).tables_of_named_file("the file of arguments", words[0], "a file of ms-swift")
    return _read_command_with_file(config, command_line._replace(words=words[1:]), source_file)


def _read_command_with_file(config: Table, command_line: CommandLine, source_file: LaunchSource) -> Launch:
    """Returns the run of a command, after the arguments in its config file are put before its own."""
    env_table = config.get("ENV")
    env: dict[str, Any] = {**(env_table if isinstance(env_table, Mapping) else {}), **source_file.env}
    env_texts = {str(variable_name): str(variable_value) for variable_name, variable_value in env.items()}
    reader = LaunchReader(source_file)
    empty_argument = next(
        (name for name, empty_value in config.items() if name != "ENV" and empty_value == []),
        None,
    )
    if empty_argument is not None:  # an argument without a value, which transformers' `HfArgumentParser` refuses
        raise reader.argument_error(
            str(empty_argument)[:100], "an empty list; expected one element or more, or a file without the key"
        )
    words = [
        word
        for argument_name, argument_value in config.items()
        if argument_name != "ENV" and argument_value is not None
        for word in (f"--{argument_name}", *_command_words_of_value(argument_value))
    ]
    world_size = source_file.world_size
    if world_size is None and env_texts.get("NPROC_PER_NODE", "").isdecimal():
        node_count = read_integer(reader, "NNODES", env_texts.get("NNODES") or 1)
        world_size = max(1, int(env_texts["NPROC_PER_NODE"][:6])) * node_count
    has_typed_devices = source_file.has_typed_device_count and source_file.world_size is not None
    config_source = replace(source_file, env=env_texts, world_size=world_size, has_typed_device_count=has_typed_devices)
    return read_arguments(command_line._replace(words=[*words, *command_line.words]), config_source)


def _command_words_of_value(argument_value: Any) -> list[str]:
    """Returns the words of a value on a command line."""
    if isinstance(argument_value, list):
        return [str(list_element) for list_element in argument_value]
    return [
        json.dumps(argument_value, ensure_ascii=False) if isinstance(argument_value, Mapping) else str(argument_value)
    ]
