"""The imports of the package have no cycle: neither those that run, inside functions too, nor those at the level of the
modules, for types too. The contract in `pyproject.toml` holds the direction of imports for types inside functions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import llmcalc

PACKAGE = Path(llmcalc.__file__).parent

BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Fields of syntax trees that hold statements, or what holds statements."""


def modules(folder: Path) -> dict[str, Path]:
    """Name of every module below a package's folder → its file. A package has the name of its folder."""
    files = ((path.relative_to(folder.parent).with_suffix("").parts, path) for path in folder.rglob("*.py"))
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for parts, path in files}


def statements(node: ast.AST, types: bool) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yields the imports below a node: with `types`, those at a module's own level, for type checkers too; without,
    those that run, inside functions too.
    """
    if types and isinstance(node, ast.FunctionDef):
        return
    if not types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        below: Iterable[ast.AST] = node.orelse
    else:  # statements alone stand in these fields, and imports in nothing else
        below = chain.from_iterable(getattr(node, field, ()) for field in BLOCKS)
    for child in below:
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        else:
            yield from statements(child, types)


def imported(name: str, tree: ast.Module, known: dict[str, Path], types: bool) -> set[str]:
    """Returns the modules that a module imports; for `from package import module`, the module and not its package."""
    home = name.split(".") if known[name].name == "__init__.py" else name.split(".")[:-1]
    found: set[str] = set()
    for one in statements(tree, types):
        if isinstance(one, ast.Import):
            found |= {alias.name for alias in one.names} & set(known)
            continue
        above = home[: len(home) - one.level + 1] if one.level else []
        base = ".".join([*above, *([one.module] if one.module else [])])
        for alias in one.names:
            inner = f"{base}.{alias.name}"
            found |= {inner if inner in known else base} & set(known)
    return found - {name}


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Returns a cycle of modules that import each other, with the first again at the end; empty if there is none."""
    done: set[str] = set()

    def search(name: str, above: list[str]) -> list[str]:
        if name in above:
            return [*above[above.index(name) :], name]
        if name in done:
            return []
        for other in sorted(graph[name]):
            if found := search(other, [*above, name]):
                return found
        done.add(name)
        return []

    return next(filter(None, (search(name, []) for name in sorted(graph))), [])


Graph: TypeAlias = dict[str, set[str]]
"""Name of a module → the modules that it imports."""


def graphs_of(folder: Path) -> tuple[Graph, Graph]:
    """Returns the imports that run, and those at the level of the modules. Each module is parsed once."""
    known = modules(folder)
    running: Graph = {}
    for_types: Graph = {}
    for name, path in known.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        running[name], for_types[name] = (imported(name, tree, known, types) for types in (False, True))
    return running, for_types


@cache
def package_graphs() -> tuple[Graph, Graph]:
    """The imports of llmcalc, for the tests of both kinds."""
    return graphs_of(PACKAGE)


def test_no_modules_import_each_other() -> None:
    graph, _ = package_graphs()
    assert "llmcalc.errors" in graph["llmcalc.units"]
    assert "llmcalc.witnesses.measured_modules" in graph["llmcalc.questions.counts"]  # imported inside a function
    assert circle(graph) == []


def test_no_modules_import_each_other_for_types() -> None:
    _, graph = package_graphs()
    assert "llmcalc.studies.draft" in graph["llmcalc.questions.counts"]  # imported for types
    assert circle(graph) == []


def test_a_circle_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "package"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "first.py").write_text("from . import second\n")
    found = ["package.first", "package.second", "package.inner", "package.first"]
    for second, inner, circles in (
        ("def late():\n    from .inner import value\n", "from typing import TYPE_CHECKING\nvalue = 1\n", ([], [])),
        ("def late():\n    from .inner import value\n", "if TYPE_CHECKING:\n    from ..first import late\n", ([], [])),
        ("def late():\n    from .inner import value\n", "from ..first import late\n", (found, [])),
        ("def late():\n    from .inner import value\n", "import package.first\n", (found, [])),
        ("from .inner import value\n", "if TYPE_CHECKING:\n    from ..first import late\n", ([], found)),
    ):
        (folder / "second.py").write_text(second)
        (folder / "inner" / "__init__.py").write_text(inner)
        assert tuple(map(circle, graphs_of(folder))) == circles
