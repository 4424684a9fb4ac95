"""Bars beside shares: as long as the width allows, of one scale, in the palette's colours, and for people alone."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

import llmcalc
from llmcalc.reports.bars import BAR_LENGTHS, TextBar, share_bar
from llmcalc.reports.document import Column, Report, Row, Table, report_in_encoding
from llmcalc.reports.formats import pipe, table
from llmcalc.reports.formats.html import tables_html
from llmcalc.reports.palette import COMPONENT_COLOURS, MEMORY_KIND_COLOURS, OTHER_COLOUR

MODELS = ("llama3-8b", "deepseek-v3", "gpt2", "zamba2-7b", "t5-11b", "mamba-130m")


def text(report: Report, width: int) -> str:
    out = io.StringIO()
    pipe.render(report, out, width)
    return out.getvalue()


def bars(report: Report) -> list[TextBar]:
    return [cell for table in report.tables for row in table.rows for cell in row.cells if isinstance(cell, TextBar)]


@pytest.mark.parametrize("model", MODELS)
def test_bars_of_components_add_up_to_the_whole(model: str) -> None:
    for report in (llmcalc.params(model).report(), llmcalc.flops(model).report()):
        assert sum(bar.fraction for bar in bars(report)) == pytest.approx(1, rel=1e-12)


def test_a_component_has_the_colour_of_the_palette() -> None:
    (found,) = llmcalc.params("mixtral-8x7b").report().tables
    colours = {row.cells[0]: row.cells[-1] and row.cells[-1].colour for row in found.rows}
    assert colours["embed_tokens"] == COMPONENT_COLOURS["embedding"]
    assert colours["self_attn"] == COMPONENT_COLOURS["attention"]
    assert colours["experts"] == COMPONENT_COLOURS["experts"]
    assert colours["norms"] == OTHER_COLOUR
    assert colours["layers"] is colours["gate_proj"] is colours["total"] is None  # several components; within experts
    memory = llmcalc.memory("gpt2").report().tables[0]
    assert (
        next(row.cells[-1].colour for row in memory.rows if row.cells[0] == "KV cache") == MEMORY_KIND_COLOURS["cache"]
    )


@pytest.mark.parametrize(
    ("width", "length"), [(58, 0), (65, 12), (71, 20), (72, 20), (78, 30), (84, 30), (85, 40), (140, 40)]
)
def test_bars_are_as_long_as_the_width_allows(width: int, length: int) -> None:
    report = llmcalc.params("llama3-8b").report()
    mlp = next(line for line in text(report, width).splitlines() if line.startswith("    mlp"))
    assert mlp.count("█") == round(0.702 * length)
    assert max(len(line) for line in text(report, width).splitlines() if "█" in line or "──" in line) <= max(width, 57)


def test_bars_of_several_tables_have_one_scale() -> None:
    def one(name: str, shares: tuple[float, ...]) -> Table:
        columns = (Column("a", "a"), Column("bar", "", share_bar, justify="left", is_bar=True))
        return Table("", columns, [Row([name, TextBar(part)]) for part in shares])

    lines = text(Report({}, [one("x" * 40, (1.0,)), one("y", (1.0, 0.5, 0.001))]), 80).splitlines()
    counts = [line.count("█") for line in lines if "x" in line or "y" in line]
    assert counts == [30, 30, 15, 0]
    assert lines[-1].endswith("▏")


def test_a_terminal_shows_the_colours_and_a_pipe_the_same_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    report = llmcalc.params("llama3-8b").report()
    out = io.StringIO()
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.delenv("NO_COLOR", raising=False)
    table.render(report, out, 100)
    red, green, blue = (int(COMPONENT_COLOURS["feed_forward"][i : i + 2], 16) for i in (1, 3, 5))
    assert f"\x1b[38;2;{red};{green};{blue}m████" in out.getvalue()
    plain_text = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert [line.rstrip() for line in plain_text.splitlines()] == text(report, 100).splitlines()


def test_ascii_stands_in() -> None:
    with_fitting_bars = text(report_in_encoding(llmcalc.params("llama3-8b").report(), "ascii"), 100)
    assert "####" in with_fitting_bars
    assert not {"█", "▏"} & set(with_fitting_bars)


@pytest.mark.parametrize("command", ["params", "flops"])
def test_programs_get_no_bars(command: str, run: Any) -> None:
    for fmt in ("csv", "markdown", "json"):
        out = run(command, "gpt2", "--format", fmt).out
        assert "█" not in out
        assert "bar" not in out.partition("\n")[0].split(",")
    assert json.loads(out)
    records = getattr(llmcalc, command)("gpt2").records()
    assert all("bar" not in record for record in records)


def test_csv_of_memory_has_no_bars(run: Any) -> None:
    assert run("memory", "gpt2", "--format", "csv").out.partition("\n")[0] == "target,part,dtype,bytes,share"


def test_a_notebook_shows_coloured_bars() -> None:
    shown = tables_html(llmcalc.params("gpt2").report())
    assert f'color:{COMPONENT_COLOURS["attention"]}">{"█" * 5}</td>' in shown


def test_the_longest_bar_comes_first() -> None:
    assert list(BAR_LENGTHS) == sorted(BAR_LENGTHS, reverse=True)
