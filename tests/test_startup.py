"""Counting starts fast, because it imports nothing heavy. Tested in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = ("torch", "transformers", "numpy", "sympy", "matplotlib", "yaml")


LATE = ("simulator", "device_memory", "frameworks", "parallel.rank", "parallel.layout_search")
"""Kernels and layouts, below llmcalc."""


def imported_by(*commands: str, modules: tuple[str, ...] = HEAVY, first: str = "") -> dict[str, list[str]]:
    """Returns command → the modules with these beginnings that one process has when it has run the commands so far."""
    code = (
        f"import json, sys\n{first}\nfrom llmcalc.cli.main import main\nfound = {{}}\n"
        f"for command in {commands!r}:\n"
        "    sys.argv = ['llmcalc', *command.split()]\n"
        "    try:\n        main()\n    except SystemExit:\n        pass\n"
        f"    found[command] = [name for name in sys.modules if name.startswith({modules!r})]\n"
        "print(json.dumps(found), file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported: dict[str, list[str]] = json.loads(result.stderr.strip().splitlines()[-1])
    return imported


COUNTING = ("params llama3-8b", "params deepseek-v3 --format json", "flops llama3-8b", "kv llama3-8b")
OTHERS = ("compare gpt2 llama3-8b", "memory llama3-8b", "presets", "hardware", "--help", "verify --help")


def test_counting_imports_nothing_heavy() -> None:
    assert imported_by(*COUNTING, *OTHERS) == {command: [] for command in (*COUNTING, *OTHERS)}


def test_counting_loads_no_kernels_and_no_layouts() -> None:
    below_llmcalc = tuple(f"llmcalc.{name}" for name in LATE)
    assert imported_by(*COUNTING, modules=below_llmcalc) == {command: [] for command in COUNTING}


def test_the_test_can_fail() -> None:
    (found,) = imported_by("params gpt2", first="import numpy").values()
    assert "numpy" in found
    assert imported_by("memory gpt2", modules=("llmcalc.simulator",))["memory gpt2"]


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


def test_a_command_collects_no_garbage() -> None:
    """Replays free what they made when nothing refers to it; at its end the process frees all without a search."""
    code = (
        "import gc, sys\nfrom llmcalc.cli import run\nruns = []\n"
        "gc.callbacks.append(lambda phase, info: runs.append(phase))\n"
        "sys.argv = ['llmcalc', 'memory', 'llama3-8b', '--phase', 'training']\n"
        "try:\n    run()\nexcept SystemExit:\n    pass\n"
        "print(len(runs), gc.get_count()[0] < 10_000, file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stderr.strip() == "0 True"
