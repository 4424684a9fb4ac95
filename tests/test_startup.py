"""Counting starts fast, because it imports nothing heavy. Tested in a separate process."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "transformers", "numpy", "sympy", "matplotlib", "yaml")


def imported_by(*args: str, first: str = "") -> set[str]:
    """Returns the heavy libraries that a command has imported when it ends."""
    code = (
        f"import sys\n{first}\nsys.argv = ['llmcalc', *{args!r}]\n"
        "from llmcalc.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print('imported', *[m for m in {HEAVY!r} if m in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    last = result.stderr.strip().splitlines()[-1].split()
    assert last[0] == "imported"
    return set(last[1:])


@pytest.mark.parametrize(
    "args",
    [
        ["params", "llama3-8b"],
        ["params", "deepseek-v3", "--format", "json"],
        ["flops", "llama3-8b"],
        ["kv", "llama3-8b"],
        ["compare", "gpt2", "llama3-8b"],
        ["memory", "llama3-8b"],
        ["presets"],
        ["hardware"],
        ["--help"],
        ["verify", "--help"],
    ],
)
def test_counting_imports_nothing_heavy(args: list[str]) -> None:
    assert imported_by(*args) == set()


@pytest.mark.parametrize("command", ["params", "flops", "kv"])
def test_counting_loads_no_kernels_and_no_layouts(command: str) -> None:
    code = (
        f"import sys\nsys.argv = ['llmcalc', {command!r}, 'llama3-8b']\nfrom llmcalc.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "late = tuple('llmcalc.' + name for name in ('simulator', 'device_memory', 'frameworks', 'parallel.rank', 'parallel.search'))\n"
        "print([m for m in sys.modules if m.startswith(late)], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip().splitlines()[-1] == "[]"


def test_the_test_can_fail() -> None:
    assert imported_by("params", "gpt2", first="import numpy") == {"numpy"}


def test_import_llmcalc_is_lazy() -> None:
    code = "import sys, llmcalc; print([m for m in ('pydantic', 'rich', 'typer') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_the_command_starts_without_collections_and_without_a_search_for_plugins() -> None:
    code = (
        "import gc, sys\nsys.argv = ['llmcalc', 'params', 'gpt2']\nfrom llmcalc.cli import run\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "from pydantic.plugin import _loader\n"
        "print(gc.isenabled(), gc.get_freeze_count() > 0, _loader._plugins, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "True True None"
