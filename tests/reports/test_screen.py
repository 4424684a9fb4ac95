"""A screen has at most 24 lines of an answer before its notes, and says how much it leaves out."""

from __future__ import annotations

import re
from io import StringIO
from typing import Any

import pytest

from llmcalc import units
from llmcalc.reports.document import Column, Report, Row, Table
from llmcalc.reports.formats.table import render
from llmcalc.reports.screen import SCREEN_LINES, trim_to_screen
from tests.reports.test_goldens import GOLDENS, SCREENS
from tests.samples import with_rest

COMMANDS = (
    "params {}",
    "flops {}",
    "kv {}",
    "memory {}",
    "memory {} --phase training --seq 256",
    "fit {} --hardware h100",
    "compare {} gpt2 gpt2-xl",
    "diff {} gpt2-xl",
)
MODELS = ("llama3-8b", "deepseek-v3", "gemma3-27b", "jamba-v0.1")
MORE = (
    "memory gpt2 --phase training --seq 256 --framework megatron --tp 2",
    "fit gpt2 --hardware h100 --devices 8 --seq 256",
    "plan gpt2 --hardware h100 --devices 8 --seq 256",
    "shape --params 1B",
    "verify gpt2 --seq 16",
    "kv t5-11b",
)
LONG = tuple(command.format("deepseek-v3") for command in COMMANDS if not command.startswith("fit"))
"""The commands with the model that has most rows. What `fit` shows has one row for each answer, whatever the model."""

LISTS = ("hardware", "presets", "explain", "diff-markdown", "params-several", "compare-six")
"""Beginnings of goldens of lists and formulas, of other formats, and of several models, which have a screen each."""


def before_the_notes(out: str) -> int:
    """Lines of the tables, and the empty lines between them. A block without a table's rule is notes."""
    tables = [block.splitlines() for block in out.split("\n\n") if "──" in block]
    return sum(len(lines) + 1 for lines in tables) - 1


EVERY = {command: command for command in (*(c.format(m) for m in MODELS for c in COMMANDS), *MORE)}


@pytest.mark.parametrize("command", with_rest(EVERY, (*LONG, MORE[0], *MORE[3:])))
def test_a_screen_has_at_most_24_lines(command: str, run: Any) -> None:
    result = run(*command.split())
    assert result.code in (0, 1), result.err
    assert 2 < before_the_notes(result.out) <= SCREEN_LINES


@pytest.mark.parametrize(
    "options",
    [
        ("llama3.3-70b", "--hardware", "h100", "--concurrency", "64", "--tpot", "30ms", "--price", "2.5"),
        ("qwen3-30b-a3b", "--hardware", "h200"),
        ("llama3-8b", "--hardware", "4090"),
    ],
)
def test_a_screen_of_servers_has_at_most_24_lines_with_its_notes(options: tuple[str, ...], run: Any) -> None:
    lines = run("serve", *options, "--input", "4k", "--output", "1k").out.splitlines()
    assert len(lines) <= SCREEN_LINES
    assert sum(line.lstrip().startswith(("tp", "pp", "dp", "2 ×", "4 ×")) for line in lines) >= 3
    assert any(line.startswith("Load of") for line in lines)
    assert "more rows" in lines[-1]


def test_the_goldens_have_at_most_24_lines() -> None:
    """They are what the commands print: `fit` and `plan`, on one device and on several, among them."""
    lengths = {
        name: before_the_notes((GOLDENS / f"{name}.txt").read_text(encoding="utf-8"))
        for name, command in SCREENS.items()
        if not name.startswith(LISTS) and "--notes" not in command and "--format" not in command
    }
    assert {name: lines for name, lines in lengths.items() if lines > SCREEN_LINES} == {}
    assert sum(lines > 2 for lines in lengths.values()) > 30


def test_no_line_of_a_terminal_ends_with_spaces() -> None:
    """rich fills cells of a wrapped column up to the table's width, and leaves the space where a heading is wrapped."""
    columns = (Column("change", "change", may_wrap=True), Column("verdict", "verdict"))
    rows = [Row(["--lora-rank 16 --lora-targets all-linear", "fits"]), Row(["none", "no"])]
    stream = StringIO()
    render(Report({}, [Table("A heading of several words that is wrapped", columns, rows)]), stream, width=30)
    lines = stream.getvalue().splitlines()
    assert len(lines) > 6
    assert [line for line in lines if line != line.rstrip()] == []


def test_all_of_it_is_in_the_notes_and_in_other_formats(run: Any) -> None:
    words = ("memory", "gpt2", "--phase", "training", "--seq", "256")
    short, whole = run(*words).out, run(*words, "--notes").out
    assert re.search("[0-9] more tables?, [0-9]+ more rows", short)
    assert "Over time" not in short
    assert "m3-ultra" not in short
    assert "Over time" in whole
    for more in (("--notes",), ("--table", "fits"), ("--format", "markdown")):
        assert "m3-ultra" in run(*words, *more).out


def table(rows: list[tuple[str, int, bool]], **fields: Any) -> Table:
    columns = (Column("name", "name", justify="left"), Column("value", "value"))
    return Table("title", columns, [Row([name, 1], depth, strong) for name, depth, strong in rows], **fields)


def names(found: Table) -> list[str]:
    return [row.cells[0] for row in found.rows]


def test_innermost_rows_go_first_and_totals_stay() -> None:
    rows = [(f"part {i}", i % 2, False) for i in range(40)] + [("total", 0, True)]
    (found,) = trim_to_screen(Report({}, [table(rows, answer="a")])).tables
    assert names(found) == [*(f"part {i}" for i in range(0, 40, 2)), "total"]  # 24 = 3 + 20 outer parts + the total
    assert found.omission_text == "20 more rows"
    rows = [(f"part {i}", 0, False) for i in range(40)] + [("total", 0, True)]
    (found,) = trim_to_screen(Report({}, [table(rows, answer="a")])).tables
    assert names(found) == [*(f"part {i}" for i in range(20)), "total"]


def test_rows_around_the_centre_stay_and_a_table_without_room_is_not_shown() -> None:
    many = [(str(i), 0, False) for i in range(30)]
    first = table([(f"first {i}", 0, False) for i in range(10)], answer="a", notes=["1"])  # 13 lines of 24
    report = Report({}, [first, table(many, notes=["2"]), table(many, central_row=20, has_priority=True)])
    shown, nearest = trim_to_screen(report).tables
    assert shown == first
    assert names(nearest) == [str(i) for i in range(17, 24)]  # 11 = an empty line, 3 and 7 rows
    assert nearest.omission_text == "1 more table, 23 more rows"
    assert nearest.notes == ["2"]


@pytest.mark.parametrize(
    ("scale", "value", "shown"),
    [
        (units.GIB, 2**34 + 2**20, "16.00"),
        (units.GIB, 2**14, "16.00 KiB"),
        (units.GIB, 5, "5 B"),
        (units.GIB, -(2**20), "−1.00 MiB"),
        (units.GIB, 0, "0.00"),
        (units.decimal_scale(1e12, "FLOPs"), 3.71e9, "3.71 GFLOPs"),
        (units.count_scale(1e9), 512, "512"),
    ],
)
def test_a_part_that_is_small_beside_its_column_has_a_unit_of_its_own(
    scale: units.UnitScale, value: float, shown: str
) -> None:
    """Parts below 0.005 of a column's unit were `<0.01`, however much smaller they were."""
    assert scale.write(value) == shown
