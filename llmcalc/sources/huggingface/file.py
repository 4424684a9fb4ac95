"""A `config.json` on disk, or in a folder, as a description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ...components.head import HeadKind
from ...errors import InputError, one_line
from ..files import read_text, require_shallow
from .registry import read, typed
from .unknown import remark, remark_on_defaults, require_known

LARGEST_CONFIG = 5_000_000
"""Bytes. Published ones are under 200 000, label tables included."""

LONGEST_NAME = 200
"""Characters of the name that a config gives itself."""


def read_json(path: Path, limit: int = LARGEST_CONFIG) -> dict[str, Any]:
    """Raises `InputError` for a file that is too large, no text, no JSON or no object, or nested past all sense."""
    return parse_json(read_text(path, limit), str(path))


def parse_json(text: str, where: str) -> dict[str, Any]:
    """Raises `InputError` for a text that is no JSON or no object, or nested past all sense. where: what to call it."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})") from None
    except (RecursionError, ValueError):
        raise InputError(
            f"{where}: nested too deeply, or with a number of thousands of digits; expected a config.json"
        ) from None
    if not isinstance(data, dict):
        raise InputError(f"{where}: expected a JSON object, the config.json of a transformers model")
    require_shallow(data, where)
    return data


def describe_config(
    path: Path, head: HeadKind | None = None, allow_unknown: bool = False
) -> tuple[str, dict[str, Any]]:
    """(a name for the model, its description: the `model` table, the config it was read from, remarks).

    Raises `InputError` for a config that is not understood, naming the field.
    """
    data = read_json(path)
    try:
        description = described(data, head, allow_unknown)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    given = data.get("_name_or_path")
    name = (
        one_line(given)[:LONGEST_NAME]
        if isinstance(given, str) and given
        else (path.parent.name if path.name == "config.json" else path.stem)
    )
    return name or path.stem, description


def described(data: dict[str, Any], head: HeadKind | None = None, allow_unknown: bool = False) -> dict[str, Any]:
    """The description of a parsed config: the `model` table, the config itself, remarks, the number format.

    allow_unknown: ignore fields that are not known, of which a misspelling or a size is otherwise an `InputError`.
    """
    config, said = typed(data)
    reading = read(config, head)
    if not allow_unknown:
        require_known(reading.unknown, reading.model_type)
    said += [
        *reading.notes,
        *remark_on_defaults(reading.from_defaults),
        *remark([one.path for one in reading.unknown]),
    ]
    description: dict[str, Any] = {
        "model": reading.model,
        "config": dict(config),
        "notes": [one_line(note) for note in said],
    }
    dtype = data.get("dtype") or data.get("torch_dtype")
    if isinstance(dtype, str):
        description["dtype"] = dtype
    return description
