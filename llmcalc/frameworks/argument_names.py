"""Reads the argument names that launch files of a kind may have, from `argument_names.toml` in the kind's folder."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path


def argument_names(reader_file: str, table_name: str) -> frozenset[str]:
    """Returns the names in one table of `argument_names.toml`. reader_file: a file in the same folder."""
    return frozenset(_tables_of_folder(Path(reader_file).with_name("argument_names.toml"))[table_name].split())


def keyword_of(flag_spelling: str) -> str:
    """Returns the Python keyword of a flag or option, such as `max_model_len` for `--max-model-len`."""
    return flag_spelling.lstrip("-").replace("-", "_")


@cache
def _tables_of_folder(reader_file: Path) -> dict[str, str]:
    return tomllib.loads(reader_file.read_text())
