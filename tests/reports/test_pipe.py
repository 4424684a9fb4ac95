"""Output to a pipe is identical to rich's, character by character, but written without importing rich."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from llmcalc.cli.main import app
from llmcalc.reports.document import Column, Report, Row, Table
from llmcalc.reports.formats import pipe, table

COMMANDS = [
    "params llama3-8b",
    "params deepseek-v3 gpt2",
    "flops llama3-8b",
    "kv gemma2-9b",
    "memory llama3-8b",
    "compare llama3-8b deepseek-v3 gpt2 bart-large",
    "shape llama3-8b",
    "shape --flops 1e24",
    "presets gemma",
    "presets llama3-8b",
    "hardware",
]

draw = table.render


def as_rich(report: Report, width: int) -> list[str]:
    out = io.StringIO()
    draw(report, out, width)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def as_pipe(report: Report, width: int) -> list[str]:
    out = io.StringIO()
    pipe.render(report, out, width)
    return out.getvalue().splitlines()


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_text(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Report] = []
    monkeypatch.setattr(table, "render", lambda report, _out, _width=None: seen.append(report))
    assert CliRunner().invoke(app, command.split()).exit_code == 0
    (report,) = seen
    for width in (60, 80, 133):
        assert as_pipe(report, width) == as_rich(report, width)


def test_long_words_depth_and_empty_cells() -> None:
    columns = (Column("a", "name", justify="left"), Column("b", "number"))
    rows = [Row(["x", 1]), Row(["deeper", None], depth=2, is_bold=True)]
    report = Report({}, [Table("title", columns, rows, "aside " * 20, ["a note " * 15, "w" * 100, ""])])
    for width in (20, 40, 80):
        assert as_pipe(report, width) == as_rich(report, width)


@pytest.mark.parametrize("width", range(18, 28))
def test_a_column_that_may_be_broken_is_written_where_it_fits(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """rich breaks its cells only in a table that is wider than the terminal."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    columns = (Column("a", "layout", justify="left", may_wrap=True), Column("b", "number"))
    report = Report({}, [Table("title", columns, [Row(["tp2 pp4 dp128", 12_345]), Row(["tp4", 1])])])
    fits = pipe.can_render(report, io.StringIO())
    assert fits == (width >= len("  tp2 pp4 dp128  number"))
    assert not fits or as_pipe(report, width) == as_rich(report, width)


NUMBER, LINK = "12,345,678,901,234,567,890", "https://example.org/" + "a" * 80


@pytest.mark.parametrize("colour", ["", "1"])
def test_nothing_is_cut_in_a_narrow_terminal(colour: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", colour)
    report = Report(
        {},
        [
            Table(
                "title", (Column("a", "name"), Column("b", "number")), [Row(["x" * 30, NUMBER])], notes=[f"see {LINK}"]
            )
        ],
    )
    out = io.StringIO()
    draw(report, out, 20)
    assert ("\x1b[" in out.getvalue()) == bool(colour)
    assert NUMBER in out.getvalue()
    assert LINK in out.getvalue()


def test_where_a_note_ends_is_seen() -> None:
    out = io.StringIO()
    pipe.render(Report({}, [Table("", (), (), notes=["one two three four", "five"])]), out, 15)
    assert out.getvalue() == "  one two three\n    four\n  five\n"


def test_rich_is_imported_for_a_terminal_alone() -> None:
    code = (
        "import sys\nsys.argv = ['llmcalc', 'params', 'gpt2']\nfrom llmcalc.cli.main import main\ntry:\n    "
        "main()\nexcept SystemExit:\n    pass\n"
    )
    code += "sys.exit(3 if 'rich' in sys.modules else 0)"
    environment: Any = {"COLUMNS": "80"}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False).returncode == 0
    )
    coloured = subprocess.run(
        [sys.executable, "-c", code], env={**environment, "FORCE_COLOR": "1"}, capture_output=True, check=False
    )
    assert coloured.returncode == 3
    assert b"\x1b[" in coloured.stdout


def test_a_percent_sign_stays_beside_its_number() -> None:
    assert list(pipe.indented_lines("one in ten by more than 29 %; and others", 28)) == [
        "  one in ten by more than",
        "  29 %; and others",
    ]
