"""Draws names and docstrings of the package, for readers who know the field and have not seen the code.

`python -m tests.names --seed N` prints 60 identifiers and 60 first lines of docstrings, each with the place where it
stands. A reader marks each that cannot be understood at once; the share of the others is what is reported.

`python -m tests.names --count` prints how often each vague identifier (`VAGUE`) occurs, by room.
`tests/test_names.py` holds the counts: a room may have fewer, never more.
"""

from __future__ import annotations

import argparse
import ast
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "llmcalc"

DRAWN = 60

VAGUE = frozenset(
    [
        "one",
        "each",
        "found",
        "told",
        "asked",
        "given",
        "own",
        "how",
        "again",
        "held",
        "made",
        "kept",
        "said",
        "those",
        "wanted",
        "taken",
        "seen",
        "fewer",
        "why",
        "near",
        "meant",
        "speed",
        "turned",
        "facts",
        "contexts",
        "half",
        "beside",
        "doubly",
        "eighth",
        "grown",
        "cheap",
        "costly",
        "enough",
        "few",
        "alike",
        "began",
        "behind",
        "beyond",
        "itself",
        "lender",
        "nearby",
        "overall",
        "promising",
        "provisional",
        "rests",
        "spared",
        "these",
    ]
)
"""Identifiers that leave the noun out: a variable, parameter or attribute has the name of the thing."""


Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class Name(NamedTuple):
    """An identifier that the package binds. where: file and line. kind: what it names."""

    name: str
    kind: str
    where: str


def sources() -> Iterator[tuple[str, ast.Module]]:
    """Every module of the package: its path below it, and its syntax tree."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text("utf-8"))


def definitions(node: ast.AST, scope: str = "") -> Iterator[tuple[Definition, str]]:
    """Every class and function below a node, with the class or function around it as a reader of the file sees it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Definition):
            yield child, scope
            yield from definitions(child, _qualified(child, scope))
        else:
            yield from definitions(child, scope)


def _qualified(node: Definition, scope: str) -> str:
    return f"{scope}.{node.name}" if scope else node.name


def _nodes_of_scope(node: ast.AST) -> Iterator[ast.AST]:
    """Every node below a function, without those of functions and classes inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, Definition):
            yield child
            yield from _nodes_of_scope(child)


def names() -> Iterator[Name]:
    """Every file, class, function, parameter, field and variable, once for each scope that binds it."""
    for file, tree in sources():
        yield Name(file, "file", file)
        for node, scope in definitions(tree):
            if isinstance(node, ast.ClassDef):
                yield Name(node.name, "class", f"{file}:{node.lineno}")
                for field in node.body:
                    if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                        yield Name(field.target.id, f"field of {_qualified(node, scope)}", f"{file}:{field.lineno}")
            else:
                kind = f"method of {scope}" if scope else "function"
                yield Name(node.name, kind, f"{file}:{node.lineno}")
                bound = {arg.arg: arg.lineno for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}
                for inner in _nodes_of_scope(node):
                    if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        bound.setdefault(inner.id, inner.lineno)
                for name, line in bound.items():
                    if name not in ("self", "cls", "_"):
                        yield Name(name, f"variable of {_qualified(node, scope)}", f"{file}:{line}")


def docstrings() -> Iterator[Name]:
    """The first line of every docstring."""
    for file, tree in sources():
        documented = [(node, _qualified(node, scope), node.lineno) for node, scope in definitions(tree)]
        for node, qualified_name, line in [(tree, "module", 1), *documented]:
            if text := ast.get_docstring(node):
                yield Name(text.splitlines()[0], qualified_name, f"{file}:{line}")


def vague_identifiers(nodes: Iterable[ast.AST]) -> int:
    """How often the nodes of a module have one of the vague identifiers."""
    count = 0
    for node in nodes:
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
        count += (node.attr if isinstance(node, ast.Attribute) else name) in VAGUE
    return count


def counts_by_room(counts_by_file: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Room → the sum of the counts of its files."""
    counts: Counter[str] = Counter()
    for file, count in counts_by_file:
        counts[file.partition("/")[0]] += count
    return {room: count for room, count in sorted(counts.items()) if count}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", action="store_true")
    options = parser.parse_args()
    if options.count:
        for room, count in counts_by_room(
            (file, vague_identifiers(ast.walk(tree))) for file, tree in sources()
        ).items():
            print(f"{count:6,} {room}")
        return
    draw = random.Random(options.seed)
    for title, every in (("names", list(names())), ("docstrings", list(docstrings()))):
        print(f"# {DRAWN} {title} of {len(every):,}")
        for name in draw.sample(every, DRAWN):
            print(f"{name.name}    ({name.kind}, {name.where})")


if __name__ == "__main__":
    main()
