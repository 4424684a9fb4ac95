"""docs/ARCHITECTURE.md says what the code has: its files, the layers of the contract, the picture of the rooms."""

from __future__ import annotations

import ast
import re

from tests.contracts.rooms import ENTRY_POINTS, PACKAGE, PICTURE, ROOT, draw, layers, read_rooms, without_implied

PAGE = (ROOT / "docs" / "ARCHITECTURE.md").read_text()

PATH = re.compile(r"`([\w.-]+/[\w./-]*|[\w-]+\.(?:py|md|toml|json))`")
"""A file or a folder in code quotes: `ops/`, `frameworks/ranks.py`, `algebra.py`."""


LINES = re.compile(r">(?:[\d,]+|under 50) lines<")
"""A room's number of lines in the picture, which every change moves and nobody relies on."""


def test_picture_is_that_of_the_imports() -> None:
    assert LINES.sub("", PICTURE.read_text()) == LINES.sub("", draw()), "out of date: python -m tests.contracts.rooms"


def test_picture_names_the_rooms_that_there_are() -> None:
    """Where they stand and how their arrows run takes seconds to find, which the exhaustive test above does."""
    lines, _ = read_rooms()
    assert set(re.findall(r">([^<>]+)</text>", LINES.sub(">", PICTURE.read_text()))) >= set(lines)


def test_every_file_that_is_named_exists() -> None:
    """Paths are below llmcalc/ or from the repository's root, and a Hugging Face name is not one."""
    paths = set(PATH.findall(PAGE))
    assert len(paths) > 60
    assert [path for path in sorted(paths) if not (PACKAGE / path).exists() and not (ROOT / path).exists()] == []


def test_lines_of_the_layout_are_the_layers_of_the_contract() -> None:
    block = PAGE.split("```\n")[1]
    lines = [re.split(r"  +", line)[0].split(" | ") for line in block.splitlines()]
    assert lines == layers()[1:]


def test_every_room_is_in_the_contract_or_an_entry_point() -> None:
    lines, _ = read_rooms()
    assert set(lines) == {room for row in layers() for room in row}
    assert set(lines) >= set(ENTRY_POINTS)


def test_an_arrow_that_follows_from_others_is_left_out() -> None:
    arrows = {("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("a", "d"), ("a", "e")}
    assert without_implied(arrows) == [("a", "b"), ("a", "e"), ("b", "c"), ("c", "d")]


def test_every_package_says_what_may_be_changed_without_reading_elsewhere() -> None:
    packages = [file.parent.relative_to(PACKAGE) for file in PACKAGE.rglob("*/__init__.py")]
    packages = [path for path in packages if path.parent.name != "families"]  # a lineage says which models it has
    texts = {
        str(path): ast.get_docstring(ast.parse((PACKAGE / path / "__init__.py").read_text())) or "" for path in packages
    }
    assert len(texts) > 60
    assert [name for name, text in texts.items() if "may be changed" not in text.split("\n\n")[-1]] == []
