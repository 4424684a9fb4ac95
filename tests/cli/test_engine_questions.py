"""The questions of docs/engines.md are each answered by their command."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmcalc.cli.main import app
from tests.samples import with_rest

ROOT = Path(__file__).parents[2]
SECTION = re.search(r"## Questions that are often asked\n(.*?)\n## ", (ROOT / "docs/engines.md").read_text(), re.DOTALL)
COMMANDS = [] if SECTION is None else re.findall(r"`llmcalc ([^`]+)` \|\n", SECTION[1])


def test_there_are_fifteen() -> None:
    assert len(COMMANDS) == 15


LARGE = "deepseek-v3"
"""A model whose answers take seconds; each engine that the page asks about it answers about another, too."""


@pytest.mark.parametrize("command", with_rest({c: c for c in COMMANDS}, [c for c in COMMANDS if LARGE not in c]))
def test_a_question_has_an_answer(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, shlex.split(command))
    assert result.exit_code in (0, 1), result.output
    assert "GiB" in result.output or "tokens" in result.output
    assert not result.output.startswith("error:")
