"""Translates units of systemd and Podman to the shell that `shell.py` reads: variables, and the command that starts.

Files of variables (`EnvironmentFile`) are not read, and a specifier such as `%i` stays as it is.
"""

from __future__ import annotations

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator

SERVICE_ENDING = ".service"
CONTAINER_ENDING = ".container"
"""Suffix of the file name of a Podman container unit, run by systemd (podman-systemd.unit)."""

_PREFIXES = "-@:+!|"
"""Characters that may precede a service's program (man systemd.service, special executable prefixes)."""


def shell_of_unit(file_text: str, file_name: str) -> str:
    """Returns shell commands that are equivalent to a systemd or Podman unit, line by line; other texts unchanged."""
    name_in_lower_case = file_name.lower()
    if not name_in_lower_case.endswith((SERVICE_ENDING, CONTAINER_ENDING)):
        return file_text
    is_container = name_in_lower_case.endswith(CONTAINER_ENDING)
    shell_lines = [""] * (file_text.count("\n") + 1)
    container_values: defaultdict[str, list[str]] = defaultdict(list)
    last_line = 0
    for line_index, setting_key, setting_value in _unit_settings(file_text):
        if is_container:
            container_values[setting_key].append(setting_value)
            last_line = line_index if setting_key in ("Image", "Exec") else last_line
        elif setting_key == "Environment":
            assignments = (word.partition("=") for word in _shell_words_of_value(setting_value))
            shell_lines[line_index] = "; ".join(
                f"export {variable_name}={shlex.quote(variable_value)}"
                for variable_name, _, variable_value in assignments
            )
        elif setting_key == "ExecStart":
            shell_lines[line_index] = setting_value.lstrip(_PREFIXES)
    if container_values["Image"]:
        shell_lines[last_line] = _podman_command(container_values)
    return "\n".join(shell_lines)


def _podman_command(values_by_key: defaultdict[str, list[str]]) -> str:
    """Returns the command `podman run` that is equivalent to a container unit of Podman."""
    variable_options = (
        f"-e {shlex.quote(assignment_word)}"
        for environment_text in values_by_key["Environment"]
        for assignment_word in _shell_words_of_value(environment_text)
    )
    volumes = (f"-v {shlex.quote(volume)}" for volume in values_by_key["Volume"])
    run_options = (*variable_options, *volumes, *values_by_key["PodmanArgs"])
    return " ".join(("podman run", *run_options, values_by_key["Image"][-1], *values_by_key["Exec"][-1:]))


def _shell_words_of_value(value: str) -> list[str]:
    try:
        return shlex.split(value)
    except ValueError:  # an open quote
        return value.split()


def _unit_settings(file_text: str) -> Iterator[tuple[int, str, str]]:
    """Yields (line index, key, value) of each setting; a backslash continues a value after any comments."""
    unit_lines = iter(enumerate(file_text.splitlines()))
    for line_index, unit_line in unit_lines:
        setting_key, separator, setting_value = unit_line.partition("=")
        if not separator or re.fullmatch(r"\w+[ \t]*", setting_key) is None:
            continue
        while setting_value.endswith("\\"):
            _, next_line = next(unit_lines, (0, ""))
            setting_value = setting_value[:-1] + (
                "\\" if next_line.lstrip().startswith(("#", ";")) else f" {next_line.strip()}"
            )
        yield line_index, setting_key.strip(), setting_value.strip()
