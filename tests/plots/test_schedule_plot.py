"""`llmcalc plot schedule`: the elements of the picture, what the terminal shows, and what is refused."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from llmcalc.parallel.layout import Layout
from llmcalc.parallel.schedules import PassDurations, pipeline, timetable
from llmcalc.plots.figure import figure_bytes
from llmcalc.plots.schedule import plot_schedule as picture
from llmcalc.reports import palette
from llmcalc.reports.formats.table import render
from llmcalc.reports.schedule import PASS_NAMES, TimetableChart, report
from tests.samples import in_one_test

HEADS = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
SCHEDULES = {
    "1f1b": (Layout(pp=4), 8),
    "interleaved": (Layout(pp=4, vpp=2), 8),
    "zb-h1": (Layout(pp=4, schedule="zb-h1"), 8),
    "dualpipe": (Layout(pp=4, schedule="dualpipe"), 12),
    "alone": (Layout(), 3),
    "many": (Layout(pp=3), 120),
}


@pytest.mark.parametrize("suffix", HEADS)
def test_every_format_is_written(run: Any, tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"schedule.{suffix}"
    code, out, err = run("plot", "schedule", "--pp", "2", "--num-microbatches", "2", "-o", str(file))
    assert (code, out, err) == (0, "", "")
    assert file.read_bytes().startswith(HEADS[suffix])


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_picture_says_what_runs(name: str) -> None:
    layout, micro_batches = SCHEDULES[name]
    found = timetable(pipeline(layout, micro_batches))
    text = figure_bytes(picture(layout, found), "svg").decode()
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    for rank in range(layout.pp):
        assert f"rank {rank}" in words
        assert f" {found.pipeline.most_in_flight(rank)}" in words
    kinds = {action.pass_kind for order in found.pipeline.actions_by_rank for action in order}
    for kind, meaning in PASS_NAMES.items():
        assert (f"{kind} {meaning}" in words) == (palette.PASS_COLOURS[kind].lower() in text) == (kind in kinds)
    if name != "many":  # there is no room for numbers in its cells
        numbers = [word for word in words if word.isdigit()]
        for i in range(micro_batches):
            assert numbers.count(str(i)) >= sum(
                a.micro_batch == i for order in found.pipeline.actions_by_rank for a in order
            )
    assert any(f"idle {found.bubble:.1%}".replace("%", " %") in word for word in words)
    if name == "alone":
        assert figure_bytes(picture(layout, found), "svg").decode() == text  # equal pictures are equal files


def test_passes_differ_without_colour() -> None:
    assert palette.PASS_HATCHES["F"] != palette.PASS_HATCHES["B"]
    assert palette.PASS_HATCHES["I"] != palette.PASS_HATCHES["W"]
    assert len(set(palette.PASS_COLOURS.values())) == len(palette.PASS_COLOURS) == len(PASS_NAMES)


@in_one_test
@pytest.mark.parametrize("columns", [60, 80, 100, 200])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_terminal_shows_what_runs_and_when(name: str, columns: int) -> None:
    """Every pass that is drawn with its name stands at its time, and no line is too long."""
    layout, micro_batches = SCHEDULES[name]
    found = timetable(pipeline(layout, micro_batches), PassDurations(2, 1, 1) if name == "zb-h1" else None)
    answer = report(layout, found, columns)
    out = StringIO()
    render(answer, out, columns)
    assert all(len(line) <= columns for line in out.getvalue().splitlines())
    (table,) = answer.tables
    at = [column.key for column in table.columns].index("time")
    chart = TimetableChart.from_timetable(found, len(table.rows[0].cells[at]))
    assert (chart.omitted_interval is not None) == ("left out" in out.getvalue()) == (" … " in out.getvalue())
    for number, row in enumerate(table.rows):
        rank, chunk = divmod(number, found.pipeline.chunk_count)
        spans = [span for span in found.spans_by_rank[rank] if span.action.chunk_index == chunk]
        starts = {f"{a.pass_kind}{a.micro_batch}": round(start * chart.columns_per_unit) for a, start, _ in spans}
        for text, window in zip(row.cells[at].split(" … "), chart.shown_ranges, strict=True):
            assert len(text) == len(window)
            names = {match.group(): match.start() for match in re.finditer(r"[FBIW]\d+", text)}
            assert names == {n: start - window.start for n, start in starts.items() if start in window}
    peaks = [row.cells[-1] for row in table.rows]
    assert sum(int(number) for peak in peaks for number in peak.split(" + ")) == sum(
        found.pipeline.most_in_flight(rank) for rank in range(layout.pp)
    )


def test_what_is_left_out_is_the_middle() -> None:
    layout, micro_batches = SCHEDULES["many"]
    rows = report(layout, timetable(pipeline(layout, micro_batches)), 80).tables[0].rows
    line = rows[0].cells[1]
    assert line.startswith("F0--F1--F2--")
    assert line.endswith("B119----")
    assert " … " in line
    wide = report(layout, timetable(pipeline(layout, micro_batches)), 100_000).tables[0].rows[0].cells[1]
    assert " … " not in wide
    assert wide.count("F") == wide.count("B") == micro_batches


def test_the_data_have_every_action() -> None:
    layout, micro_batches = SCHEDULES["interleaved"]
    document = report(layout, timetable(pipeline(layout, micro_batches)), 80).document()
    assert isinstance(document, dict)
    assert (document["schedule"], document["pp"], document["vpp"]) == ("interleaved", 4, 2)
    assert [rank["stages"] for rank in document["by_rank"]] == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert [rank["most_in_flight"] for rank in document["by_rank"]] == [11, 9, 7, 5]
    assert document["by_rank"][3]["actions"][:2] == [["F", 0, 0, 3, 4], ["F", 0, 1, 4, 5]]


def test_a_terminal_has_colours(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("plot", "schedule", "--pp", "2", "--num-microbatches", "2").out
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM", raising=False)
    out = StringIO()
    render(report(Layout(pp=2), timetable(pipeline(Layout(pp=2), 2)), 80), out)
    assert "\x1b[36mF0" in out.getvalue()
    assert "\x1b[32mB0--" in out.getvalue()
    uncoloured = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert [line.rstrip() for line in uncoloured.splitlines()] == plain.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--pp 4", "missing option --num-microbatches"),
        ("--num-microbatches 4", "missing option --pp"),
        ("--pp 0 --num-microbatches 4", "--pp: 0 is too small"),
        ("--pp 4 --num-microbatches 0", "--num-microbatches: 0 is too small"),
        ("--pp 4 --vpp 2 --num-microbatches 10", "expected a multiple of 4, such as 8 or 12, or no --vpp"),
        ("--pp 4 --num-microbatches 4 --schedule interleaved", "expected --vpp of at least 2"),
        ("--pp 4 --num-microbatches 6 --schedule dualpipe", "--schedule dualpipe takes an even number"),
        ("--pp 3 --num-microbatches 6 --schedule dualpipe", "expected an even --pp"),
        ("--pp 4 --num-microbatches 8 --schedule gpipe", "expected one of 1f1b, interleaved, zb-h1, dualpipe"),
        ("--pp 4 --num-microbatches 1000000", "more than can be drawn; expected at most 25000"),
        ("--pp 1000000 --num-microbatches 8", "more than can be drawn; expected fewer stages"),
        ("--pp 4 --num-microbatches 8 -o schedule.txt", "its suffix names no format of a picture"),
    ],
)
def test_bad_words_exit_with_2(run: Any, words: str, message: str) -> None:
    assert message in run("plot", "schedule", *words.split()).error
