"""Finds the config file that a command names, and applies the command's overrides to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...errors import InputError
from ..argument_names import keyword_of
from .command_line import CONFIG_ENDINGS, parse_arguments, parsed_argument_value
from .launch_types import CommandLine, Table
from .unresolved import is_unresolved, printable_word
from .yaml_text import parse_yaml

CONFIG_OPTION = re.compile(r"-c|--(job\.)?config([_-](file|path))?")
"""Options by which programs name their config file."""

MAX_KEY_PARTS = 20
"""Largest number of names in a dotted key such as `model.lora_rank`."""


COMPONENT_KEY = "_component_"
"""Key that names the class which the other keys of a table configure."""


def config_file_and_words(command_line: CommandLine) -> tuple[str, int, int] | None:
    """Returns a command's config file and the range of the words that name it; None without a config file.

    The file is the first word with the ending of one, or the value of `--config`.
    """
    command_words = command_line.words
    for i, command_word in enumerate(command_words):
        option_name, equals_sign, config_path = command_word.partition("=")
        if CONFIG_OPTION.fullmatch(option_name):
            if equals_sign and config_path.endswith(CONFIG_ENDINGS):
                return config_path, i, i + 1
            if not equals_sign and i + 1 < len(command_words) and command_words[i + 1].endswith(CONFIG_ENDINGS):
                return command_words[i + 1], i, i + 2
        if i == 0 and "=" not in command_word and command_word.endswith(CONFIG_ENDINGS):
            return command_word, i, i + 1
    return None


def with_typed_values(config: Table, command_line: CommandLine, name_in_errors: str) -> dict[str, Any]:
    """Returns the tables of a command's config file, with the values that the command overrides.

    A word is `key=value`, or an argument `--key value`; a key with dots is one of an inner table. Raises `InputError`
    for a word of another form.
    """
    config_file_and_range = config_file_and_words(command_line)
    if config_file_and_range is None:
        other_words = [*command_line.words]
    else:
        other_words = [*command_line.words[: config_file_and_range[1]], *command_line.words[config_file_and_range[2] :]]
    typed_values: dict[str, Any] = {}
    arguments: list[str] = []
    for command_word in other_words:
        override_match = re.fullmatch(r"\+{0,2}([A-Za-z_][\w.-]{0,150})=(.*)", command_word, re.DOTALL)
        if override_match is None:
            arguments.append(command_word)
        else:
            typed_values[override_match[1]] = override_match[2]
    typed_values |= {keyword_of(name): value for name, value in parse_arguments(arguments, name_in_errors).items()}
    changed_config = dict(config)
    for typed_name, typed_value in typed_values.items():
        config_key = printable_word(typed_name)[:150]
        _set_dotted_key(
            changed_config, config_key, _typed_value(typed_value, f"{name_in_errors}: {config_key}"), name_in_errors
        )
    return changed_config


def _typed_value(typed_text: Any, name_in_errors: str) -> Any:
    """Returns the value that a word of a command stands for; a text in square brackets is a YAML list."""
    if isinstance(typed_text, str) and re.fullmatch(r"\[.*\]", typed_text, re.DOTALL) and not is_unresolved(typed_text):
        return parse_yaml(typed_text, name_in_errors)
    return parsed_argument_value(typed_text)


def _set_dotted_key(config_table: dict[str, Any], dotted_key: str, typed_value: Any, name_in_errors: str) -> None:
    """Sets the value of a key with dots in nested tables, which are copied first.

    A value for the table of a component is the component's name (torchtune/config/_utils.py,
    `_merge_yaml_and_cli_args`).
    """
    *outer_keys, last_key = dotted_key.split(".")
    if len(outer_keys) >= MAX_KEY_PARTS:
        raise InputError(f"{name_in_errors}: {dotted_key[:60]}: too many dots; expected at most {MAX_KEY_PARTS} names")
    for inner_key in outer_keys:
        inner_table = config_table.get(inner_key)
        if not isinstance(inner_table, Mapping) and inner_table is not None:
            raise InputError(
                f"{name_in_errors}: {dotted_key}: {inner_key} is no table in the config file; expected one of its keys"
            )
        config_table[inner_key] = dict(inner_table or {})
        config_table = config_table[inner_key]
    component = config_table.get(last_key)
    if not outer_keys and isinstance(component, Mapping) and COMPONENT_KEY in component:
        typed_value = {**component, COMPONENT_KEY: typed_value}
    config_table[last_key] = typed_value
