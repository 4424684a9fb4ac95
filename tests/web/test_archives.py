"""The archives of the page's own Python: what is left out of them, nothing on the page imports (1 s)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.samples import in_one_test

from .loading import ROOT, WEB, module

build = module(WEB / "build.py")

ON_THE_PAGE = [
    path
    for path in sorted((ROOT / "llmcalc").rglob("*.py"))
    if not path.relative_to(ROOT).as_posix().startswith(build.NOT_ON_THE_PAGE)
]


IN_THE_WHEEL = {
    f"{parent}{path.relative_to(ROOT).as_posix()}"
    for folder, parent in (("llmcalc", ""), ("presets", "llmcalc/"))
    for path in (ROOT / folder).rglob("*")
    if path.is_file()
}


@pytest.mark.parametrize("name", ["NOT_ON_THE_PAGE", "LATER", "CLUSTER", "SHAPES", "CONFIGS"])
def test_every_part_of_an_archive_is_a_file_of_the_package(name: str) -> None:
    package_prefixes = [prefix for prefix in getattr(build, name) if prefix.startswith("llmcalc/")]
    assert [prefix for prefix in package_prefixes if not any(path.startswith(prefix) for path in IN_THE_WHEEL)] == []


def loaded_modules(tree: ast.AST) -> Iterator[str]:
    """The modules that a module imports when it is imported itself, not when one of its functions runs."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            yield from (name for statement in child.orelse for name in loaded_modules(ast.Module([statement], [])))
        elif not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield from loaded_modules(child)


def is_left_out(name: str) -> bool:
    path = name.replace(".", "/")
    return f"{path}.".startswith(build.UNUSED_STANDARD_MODULES) or f"{path}/".startswith(build.UNUSED_STANDARD_MODULES)


IMPORTED = re.compile(r"^[ \t]*(?:import|from)[ \t]+(.+)", re.MULTILINE)


def imports_a_package_with_less(text: str) -> bool:
    """Whether a line of a module names a package of which something is left out; parsing all modules takes seconds."""
    packages = {re.split(r"[./]", name)[0] for name in build.UNUSED_STANDARD_MODULES}
    return any(packages & set(re.findall(r"\w+", line)) for line in IMPORTED.findall(text))


@in_one_test
@pytest.mark.parametrize("path", ON_THE_PAGE)
def test_no_module_of_the_page_imports_what_is_left_out_of_its_python(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    names = set(loaded_modules(ast.parse(text))) if imports_a_package_with_less(text) else set()
    assert {name for name in names if is_left_out(name)} == set()


def test_an_import_of_what_is_left_out_is_found() -> None:
    for text in ("import os, http.server\n", "from http import (\n    server,\n)\n", "if True:\n    import pydoc\n"):
        assert imports_a_package_with_less(text)
        assert any(map(is_left_out, loaded_modules(ast.parse(text))))


def test_what_is_left_out_are_modules_of_python() -> None:
    """So that a name which is misspelt, or gone from Python, does not stand there; `pyodide` is not Python's own."""
    named = [name.rstrip("./") for name in build.UNUSED_STANDARD_MODULES if not name.startswith("encodings/")]
    packages = {name.partition("/")[0] for name in named} - {"pyodide"}
    only_in_later_versions = {"_pyrepl", "profiling"}  # 3.13 and 3.15
    assert packages - only_in_later_versions <= sys.stdlib_module_names
    assert is_left_out("http.server")
    assert not is_left_out("traceback")
