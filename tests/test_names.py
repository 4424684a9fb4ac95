"""The package's identifiers: a vague one (`one`, `found`, `told`, …) may not come back where it was replaced.

`python -m tests.names --count` prints the numbers of today; a change that has fewer lowers them here.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.names import counts_by_room, sources, vague_identifiers

MOST = json.loads((Path(__file__).parent / "data" / "vague_names.json").read_text("utf-8"))
"""Room → how many vague identifiers it may have."""


class Wording(NamedTuple):
    """What the tests below ask of a module.

    vague: number of vague identifiers.
    not_taken: (function, name) of what docstrings describe and the function does not take.
    repeated: what stands twice in a row in a text.
    """

    vague: int
    not_taken: tuple[tuple[str, str], ...]
    repeated: tuple[str, ...]


@cache
def wording_by_file() -> dict[str, Wording]:
    """File → its wording. The package is parsed once, each tree is walked once, and no syntax tree stays."""
    return {file: wording_of(list(ast.walk(tree))) for file, tree in sources()}


def wording_of(nodes: list[ast.AST]) -> Wording:
    """The wording of the nodes of a module."""
    return Wording(vague_identifiers(nodes), tuple(described_arguments(nodes)), tuple(repeated_words(nodes)))


def vague_counts() -> dict[str, int]:
    """Room → how often its code has one of the vague identifiers."""
    return counts_by_room((file, wording.vague) for file, wording in wording_by_file().items())


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


def described_arguments(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, str]]:
    """Yields (function, name) for what docstrings of a module's nodes describe and the function does not take."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name not in NOT_ARGUMENTS:
            arguments = {argument.arg for argument in ast.walk(node.args) if isinstance(argument, ast.arg)}
            for names in DESCRIBED.findall(ast.get_docstring(node) or ""):
                yield from ((node.name, name) for name in names.split(", ") if name not in arguments)


def test_docstrings_describe_arguments_that_functions_take() -> None:
    """A rename of an argument goes through its docstring."""
    one_too_many = ast.parse('def f(a):\n    """Counts.\n\n    a, b: sizes.\n    """')
    assert list(described_arguments(ast.walk(one_too_many))) == [("f", "b")]
    assert {file: wording.not_taken for file, wording in wording_by_file().items() if wording.not_taken} == {}


TWICE = re.compile(r"(?<!\S)((?:\S+ ){3,6}?)\1")
"""Three to six words, and the same again."""


def repeated_words(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yields what stands twice in a row in a text of a module's nodes."""
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            words = "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in parts).split()
            phrases = TWICE.findall(" ".join(words) + " ") if len(words) >= 6 else []
            yield from (phrase for phrase in phrases if len(set(phrase.split())) > 2)


def test_no_text_says_its_words_twice() -> None:
    """A text that is broken into lines anew, by hand or by a merge, may keep the old beginning beside the new one."""
    broken_text = ast.parse('f"{x}: expected a (of the model " "(of the model of it)"')
    assert set(repeated_words(ast.walk(broken_text))) == {"(of the model "}
    assert {file: wording.repeated for file, wording in wording_by_file().items() if wording.repeated} == {}
