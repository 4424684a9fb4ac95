"""The package's identifiers: a vague one (`one`, `found`, `told`, …) may not come back where it was replaced.

`python -m tests.names --count` prints the numbers of today; a change that has fewer lowers them here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

from tests.names import PACKAGE, sources, vague_counts

MOST = json.loads((Path(__file__).parent / "data" / "vague_names.json").read_text("utf-8"))
"""Room → how many vague identifiers it may have."""


def test_no_room_has_more_vague_identifiers() -> None:
    counts = vague_counts()
    more = {room: (count, MOST.get(room, 0)) for room, count in counts.items() if count > MOST.get(room, 0)}
    assert not more, "name the thing: layer, rank, candidate, result, … (docs/ARCHITECTURE.md, glossary)"


def test_the_limits_are_those_of_today() -> None:
    """A limit far above its room's count would let a hundred of them in."""
    counts = vague_counts()
    assert all(limit <= 1.1 * counts.get(room, 0) + 5 for room, limit in MOST.items())


DESCRIBED = re.compile(r"^([a-z_]+(?:, [a-z_]+)*): ", re.M)
"""The names at the beginning of a docstring's line that says what arguments are."""

NOT_ARGUMENTS = {"optimizer_sharding", "run_jobs"}
"""Functions whose docstrings list values that they return."""


def described_arguments(text: str) -> Iterator[tuple[str, str]]:
    """Yields (function, name) for what docstrings describe and the function does not take. text: a module's code."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and node.name not in NOT_ARGUMENTS:
            arguments = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            for names in DESCRIBED.findall(ast.get_docstring(node) or ""):
                yield from ((node.name, name) for name in names.split(", ") if name not in arguments)


def test_docstrings_describe_arguments_that_functions_take() -> None:
    """A rename of an argument goes through its docstring."""
    assert list(described_arguments('def f(a):\n    """Counts.\n\n    a, b: sizes.\n    """')) == [("f", "b")]
    wrong = {str(file): list(described_arguments(file.read_text())) for file in PACKAGE.rglob("*.py")}
    assert {file: names for file, names in wrong.items() if names} == {}


TWICE = re.compile(r"(?<!\S)((?:\S+ ){3,6}?)\1")
"""Three to six words, and the same again."""


def repeated_words(tree: ast.Module) -> Iterator[str]:
    """Yields what stands twice in a row in a text of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant | ast.JoinedStr):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts).split()
            phrases = TWICE.findall(" ".join(words) + " ")
            yield from (phrase for phrase in phrases if len(set(phrase.split())) > 2)


def test_no_text_says_its_words_twice() -> None:
    """A text that is broken into lines anew, by hand or by a merge, may keep the old beginning beside the new one."""
    broken_text = ast.parse('f"{x}: expected a (of the model " "(of the model of it)"')
    assert set(repeated_words(broken_text)) == {"(of the model "}
    wrong = {file: list(repeated_words(tree)) for file, tree in sources()}
    assert {file: texts for file, texts in wrong.items() if texts} == {}
