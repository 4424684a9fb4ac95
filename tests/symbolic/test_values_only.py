"""Without sympy, `explain` answers with the same values as with it, and says what formulas in symbols need."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

WITHOUT = "import sys; sys.modules['sympy'] = None; from llmcalc.cli import run; run()"
HINT = "values only; a formula in symbols needs sympy: pip install "
SYMBOLIC = ("symbolic", "latex", "substituted", "in_units_of_h")


def without_sympy(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command in a process that cannot import sympy."""
    command = [sys.executable, "-c", WITHOUT, "explain", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "words",
    [
        ("deepseek-v3",),
        ("gemma2-9b", "self_attn", "--quantity", "activations"),
        ("qwen3-30b-a3b", "--tp", "2", "--ep", "2", "--etp", "1"),
    ],
)
def test_values_are_those_of_the_formulas(words: tuple[str, ...], run: Any) -> None:
    answer = without_sympy(*words, "--format", "json")
    assert answer.returncode == 0, answer.stderr
    values = json.loads(answer.stdout)
    formulas = run("explain", *words, "--format", "json").document
    assert len(values["formulas"]) > 1
    for value, formula in zip(values["formulas"], formulas["formulas"], strict=True):
        assert formula["symbolic"]
        assert value == formula | dict.fromkeys(SYMBOLIC)
    assert values["symbols"] == {}
    assert values["notes"][0].startswith(HINT)


def test_the_screen_has_values_and_one_hint() -> None:
    answer = without_sympy("llama3-8b", "mlp")
    assert answer.returncode == 0
    assert "176,160,768" in answer.stdout
    assert " ".join(answer.stdout.split()).count(HINT) == 1


def test_latex_needs_sympy() -> None:
    answer = without_sympy("llama3-8b", "--latex")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("error: --latex needs sympy: pip install ")
    assert answer.stderr.count("\n") == 1
