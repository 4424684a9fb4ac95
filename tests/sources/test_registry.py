"""The lists beside `llmcalc/sources/huggingface/families` match the families' files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from llmcalc.sources import huggingface
from llmcalc.sources.huggingface.registry import TYPES_BY_FILE, families_of_file, family_files
from tests.builders import json_lines

LIST = Path(huggingface.__path__[0]) / "families.json"


def listed() -> dict[str, list[str]]:
    """File → its model types, in the order of the existing list; new ones come last."""
    old = {file: place for place, file in enumerate(TYPES_BY_FILE)}
    kinds = {kind: place for place, kind in enumerate(kind for file in TYPES_BY_FILE.values() for kind in file)}
    return {
        file: sorted(families_of_file(file), key=lambda kind: kinds.get(kind, len(kinds)))
        for file in sorted(family_files(), key=lambda file: old.get(file, len(old)))
    }


def written() -> str:
    """Returns the file's text: one line per file."""
    return json_lines(listed()) + "\n"


def test_the_list_is_current() -> None:
    assert LIST.read_text() == written(), "run python -m tests.sources.test_registry"


def test_no_model_type_is_read_by_two_files() -> None:
    kinds = [kind for file in listed().values() for kind in file]
    assert len(kinds) == len({*kinds})


def test_a_family_reads_every_table_of_module_names() -> None:
    """A table that no family has by its name or states, and that no other table names, is left over."""
    tables: dict[str, dict[str, str]] = json.loads(LIST.with_name("module_names.json").read_text())
    sources = "".join(path.read_text() for path in LIST.with_name("families").rglob("*.py"))
    model_types = {model_type for file_types in listed().values() for model_type in file_types}
    added_to = {table["**"] for table in tables.values() if "**" in table}
    assert {*re.findall(r"""module_names\(["']([^"']+)["']\)""", sources)} | added_to | ({*tables} & model_types) == {
        *tables
    }


if __name__ == "__main__":
    LIST.write_text(written())
