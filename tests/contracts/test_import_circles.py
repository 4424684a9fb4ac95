"""No two files of the package import each other, whether at run time or for types alone.

Read are the imports at the top level of every file, under `if TYPE_CHECKING` too. Imports inside functions run when the
function does, and are left out: the contract in `pyproject.toml` holds their direction.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import llmcalc

PACKAGE = Path(llmcalc.__file__).parent


def module_name(path: Path, root: Path) -> str:
    """The module of a file, such as `llmcalc.flow.tree`."""
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The imports of a module's own level, in branches too."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def imports_of(path: Path, root: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports. Its own package is none of them: that imports nothing of it."""
    name = module_name(path, root)
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    found = set()
    for node in statements(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
            continue
        start = package[: len(package) - node.level + 1] if node.level else []
        base = ".".join([*start, *([node.module] if node.module else [])])
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            found.add(submodule if submodule in modules else base)
    return (found & modules) - {name}


def graph(root: Path) -> dict[str, set[str]]:
    """Module → the modules of the package that it imports."""
    files = sorted(root.rglob("*.py"))
    modules = {module_name(path, root) for path in files}
    return {module_name(path, root): imports_of(path, root, modules) for path in files}


def circles(edges: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules of which each leads to every other (Tarjan 1972), of more than one module."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in sorted(edges[name]):
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            group = []
            while not group or group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in order:
            visit(name)
    return found


def test_no_circle() -> None:
    assert circles(graph(PACKAGE)) == []


def test_a_circle_of_types_is_found(tmp_path: Path) -> None:
    root = tmp_path / "toy"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "low.py").write_text(
        "if TYPE_CHECKING:\n    from .high import High\n\ndef late():\n    from .other import x\n"
    )
    (root / "high.py").write_text("from . import low\n")
    (root / "other.py").write_text("import toy.high\n")
    assert circles(graph(root)) == [["toy.high", "toy.low"]]
