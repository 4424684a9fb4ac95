"""Reads a Jupyter notebook (nbformat 3 and 4) as a Python file, or as a script of the notebook's shell commands.

A notebook of the nbformat is JSON whose `cells` have a type and a source. IPython's own lines are no Python: `!command`
starts a shell, `%%bash` and `%%writefile FILE` make a script or a file of a whole cell, `%magic` configures IPython.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...sources.files import parse_json, read_text
from .python_source import module_constants
from .systemd_units import shell_of_unit
from .windows_scripts import shell_text_of_windows_script
from .yaml_text import LARGEST_FILE_BYTES

NOTEBOOK_ENDING = ".ipynb"
"""Suffix of a notebook's file name."""

LARGEST_NOTEBOOK = 6_000_000
"""Size of the largest notebook that is read, in bytes, with outputs and pictures."""

MAX_CELLS = 5_000
"""Largest number of cells of a notebook; each is parsed as Python. Real notebooks have under 300."""

SHELL_CELLS = ("%%bash", "%%sh", "%%script bash", "%%script sh")
"""First words of notebook cells that are shell scripts."""

PYTHON_CELLS = ("%%capture", "%%time", "%%timeit", "%%python")
"""First words of notebook cells that are Python."""

IPYTHON_LINE = re.compile(r"^(\s*)(?:[!%?]|\w+\s*=\s*[!%])|\?\s*$")
"""Pattern of lines that IPython understands and Python does not."""

CELL_END_MARK = "END_OF_THIS_CELL"
"""Mark that ends a cell's text in a here-document of the script."""


def read_launch_text(file_path: Path) -> str:
    """Returns a launch file's text: a notebook's code, or a Windows script or systemd unit translated to shell.

    Raises `InputError` for a file that is not text.
    """
    if file_path.suffix != NOTEBOOK_ENDING:
        return shell_of_unit(
            shell_text_of_windows_script(read_text(file_path, LARGEST_FILE_BYTES), file_path.name), file_path.name
        )
    return code_of_notebook(read_text(file_path, LARGEST_NOTEBOOK), str(file_path))


def is_python_name(file_name: str) -> bool:
    """Whether a file's name is the name of a Python file or a notebook."""
    return file_name.endswith((".py", NOTEBOOK_ENDING))


def code_of_notebook(notebook_text: str, name_in_errors: str) -> str:
    """Returns a notebook's Python code, or a script of its shell commands if the Python code starts no training.

    Raises `InputError` for a text that is no notebook.
    """
    from .file_kinds import launch_file_kinds

    cells = list(_code_cells(parse_json(notebook_text, name_in_errors), name_in_errors))
    python_text = "\n".join(map(_python_of_cell, cells))
    if any(file_kind.read_python is not None and file_kind.is_python(python_text) for file_kind in launch_file_kinds()):
        return _checked_code(python_text, name_in_errors)
    commands = [command_text for cell in cells if (command_text := _script_of_cell(cell))]
    if not commands:
        return _checked_code(python_text, name_in_errors)
    return _checked_code("\n".join(["#!/bin/bash", *_shell_variables(python_text), *commands]), name_in_errors)


def _checked_code(python_code: str, name_in_errors: str) -> str:
    """Returns the code of a notebook. Raises `InputError` if it is empty or too large."""
    if not python_code.strip():
        raise InputError(f"{name_in_errors}: a notebook without code; expected cells that train or start a server")
    if len(python_code) > LARGEST_FILE_BYTES:
        raise InputError(
            f"{name_in_errors}: {len(python_code):,} letters of code; expected at most {LARGEST_FILE_BYTES:,}"
        )
    return python_code


def _code_cells(notebook: Any, name_in_errors: str) -> Iterator[str]:
    """Yields the text of each code cell of a notebook."""
    worksheets = notebook.get("worksheets") if isinstance(notebook, Mapping) else None  # nbformat 3
    first_worksheet = worksheets[0] if isinstance(worksheets, list) and worksheets else notebook
    cells = first_worksheet.get("cells") if isinstance(first_worksheet, Mapping) else None
    if not isinstance(cells, list):
        raise InputError(f"{name_in_errors}: is no notebook: it has no list of cells; expected Jupyter's format")
    if len(cells) > MAX_CELLS:
        raise InputError(f"{name_in_errors}: {len(cells):,} cells; expected at most {MAX_CELLS:,}")
    for cell in cells:
        if not isinstance(cell, Mapping) or cell.get("cell_type") != "code":
            continue
        cell_source = cell.get("source", cell.get("input", ""))
        cell_lines = cell_source if isinstance(cell_source, list) else [cell_source]
        yield "".join(cell_line for cell_line in cell_lines if isinstance(cell_line, str))


def _python_of_cell(cell: str) -> str:
    """Returns a cell's Python, with `pass` in place of IPython commands; empty for a cell without Python."""
    first_line, _, cell_body = cell.lstrip().partition("\n")
    if first_line.startswith("%%"):
        if not first_line.startswith(PYTHON_CELLS):
            return ""
        cell = cell_body
    if _is_valid_python(cell):
        return cell
    python_lines: list[str] = []
    is_continued = False
    for cell_line in cell.split("\n"):
        magic_match = None if is_continued else IPYTHON_LINE.search(cell_line)
        if magic_match is not None:
            python_lines.append(f"{magic_match[1] or ''}pass")
        elif not is_continued:
            python_lines.append(cell_line)
        is_continued = (magic_match is not None or is_continued) and cell_line.rstrip().endswith("\\")
    python_text = "\n".join(python_lines)
    return python_text if _is_valid_python(python_text) else ""


def _is_valid_python(python_text: str) -> bool:
    """Whether a text is Python."""
    try:
        ast.parse(python_text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _script_of_cell(cell: str) -> str:
    """Returns the commands of a cell as lines of a script; empty for a cell without commands."""
    first_line, _, cell_body = cell.lstrip().partition("\n")
    if first_line.startswith(SHELL_CELLS):
        return cell_body
    if first_line.startswith("%%writefile"):
        file_name = first_line.split()[-1]
        return (
            f"cat > {file_name} <<'{CELL_END_MARK}'\n{cell_body}\n{CELL_END_MARK}"
            if CELL_END_MARK not in cell_body
            else ""
        )
    command_lines: list[str] = []
    is_continued = False
    for cell_line in cell.split("\n"):
        command = re.match(r"\s*!+(.*)", cell_line)
        if command is not None or is_continued:
            command_text = cell_line if command is None else command[1]
            command_lines.append(re.sub(r"\$?\{(\w+)\}", r"${\1}", command_text))
            is_continued = command_text.rstrip().endswith("\\")
    return "\n".join(command_lines)


def _shell_variables(python_text: str) -> Iterator[str]:
    """Yields shell assignments of a notebook's Python constants, for use in the notebook's shell commands."""
    if not _is_valid_python(python_text):
        return
    for variable_name, variable_value in module_constants(ast.parse(python_text).body).items():
        if (
            isinstance(variable_value, str | int)
            and re.fullmatch(r"[\w./:@ -]{1,200}", str(variable_value)) is not None
        ):
            yield f"{variable_name}='{variable_value}'"
