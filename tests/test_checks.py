"""The house rules that tools check: style and the direction of imports. Types are a part of `.ci/run`: mypy takes as
long as hundreds of tests.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

CHECKS = {
    "ruff": ["-m", "ruff", "check", "llmcalc", "tests"],
    "ruff format": ["-m", "ruff", "format", "--check", "llmcalc", "tests"],
    "imports": ["-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-cache"],
}


@pytest.mark.parametrize("name", CHECKS)
def test_check(name: str) -> None:
    result = subprocess.run([sys.executable, *CHECKS[name]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
