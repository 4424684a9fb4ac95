"""Reads configs of llama-swap, which have a server command per model, with macros.

Its README and config.example.yaml describe them: `${name}` in a command is a macro of the model or of the file,
`${MODEL_ID}` the model's key, `${PORT}` a free port, `${env.NAME}` a variable of the environment. Lines that begin
with `#` are remarks.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from ...errors import InputError, one_line
from ..launch.shell_words import LONGEST_VALUE
from ..launch.unresolved import mark_unresolved
from .server import Container

DEEPEST_MACRO = 10
"""Largest nesting depth of macros."""

FREE_PORT = "8080"
"""A free port number, which has no effect on memory."""


def is_llama_swap(config: Any) -> bool:
    """Whether tables are a config of llama-swap: models by name, with commands."""
    model_tables = config.get("models") if isinstance(config, Mapping) else None
    return isinstance(model_tables, Mapping) and any(
        isinstance(model_table, Mapping) and isinstance(model_table.get("cmd"), str)
        for model_table in model_tables.values()
    )


def servers_of_llama_swap(
    config: Mapping[str, Any], name_in_errors: str, variables: Mapping[str, str]
) -> Iterator[Container]:
    """Yields the server command of each model in the config.

    name_in_errors: the file in messages. variables: environment variables.
    """
    shared_macros = _read_macros(config)
    for model_name, model_table in config["models"].items():
        if not isinstance(model_table, Mapping) or not isinstance(model_table.get("cmd"), str):
            continue
        place_in_file = f"models.{one_line(str(model_name))[:60]}"
        env_macros = {f"env.{variable_name}": variable_value for variable_name, variable_value in variables.items()}
        macro_values = {
            "PORT": FREE_PORT,
            **env_macros,
            **shared_macros,
            **_read_macros(model_table),
            "MODEL_ID": str(model_name),
        }
        command_text = _expand_macros(model_table["cmd"], macro_values, f"{name_in_errors}: {place_in_file}")
        command_lines = [text_line for text_line in command_text.split("\n") if not text_line.strip().startswith("#")]
        try:
            unexpanded_words = shlex.split(" ".join(command_line.rstrip("\\") for command_line in command_lines))
        except ValueError:
            raise InputError(
                f"{name_in_errors}: {place_in_file}: a quote does not end; expected one that does"
            ) from None
        env_entries = [
            env_item for env_item in model_table.get("env") or () if isinstance(env_item, str) and "=" in env_item
        ]
        yield Container(
            place_in_file, command_words=unexpanded_words, env=dict(env_item.split("=", 1) for env_item in env_entries)
        )


def _read_macros(macro_table: Mapping[str, Any]) -> dict[str, str]:
    macro_list = macro_table.get("macros")
    macro_texts = macro_list if isinstance(macro_list, Mapping) else {}
    return {
        str(macro_name): str(macro_text).lower() if isinstance(macro_text, bool) else str(macro_text)
        for macro_name, macro_text in macro_texts.items()
        if isinstance(macro_text, str | int | float)
    }


def _expand_macros(command: str, values_by_macro: Mapping[str, str], place_in_errors: str) -> str:
    """Returns a command with all macros expanded, including nested macros. place_in_errors: the location in errors."""
    for _ in range(DEEPEST_MACRO):
        used_macros = re.findall(r"\$\{([\w.-]{1,120})\}", command)
        if not used_macros:
            return command
        if len(command) + sum(len(values_by_macro.get(macro, macro)) for macro in used_macros) > LONGEST_VALUE:
            raise InputError(
                f"{place_in_errors}: its command grows too long; expected at most {LONGEST_VALUE:,} letters"
            )
        command = re.sub(
            r"\$\{([\w.-]{1,120})\}",
            lambda macro_match: values_by_macro.get(macro_match[1], mark_unresolved(f"${macro_match[1]}")),
            command,
        )
    raise InputError(f"{place_in_errors}: macros name each other; expected at most {DEEPEST_MACRO} inside each other")
