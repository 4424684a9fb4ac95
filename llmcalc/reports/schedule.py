"""`llmcalc plot schedule` in a terminal: a row per stage, time to the right, micro-batches in flight beside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import units
from ..parallel.layout import Layout, Schedule
from ..parallel.schedules import InFlight, Kind, Span, Timetable, effective_schedule
from .document import Column, Report, Row, Table
from .formats.pipe import GAP, INDENT, width_of_terminal

NAMES: dict[Schedule, str] = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "dualpipe": "DualPipe",
}
"""Schedule → its name in its paper."""

PASSES: dict[Kind, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward of the inputs",
    "W": "backward of the weights",
}
"""Letter of a pass → its name."""

COLOURS = {r"F\d+-*": "cyan", r"[BI]\d+-*": "green", r"W\d+-*": "yellow"}
"""Regular expression of a pass → its colour on a terminal."""

FILL, IDLE, LEFT_OUT = "-", ".", " … "


def title(layout: Layout, timetable: Timetable) -> str:
    """Writes `1F1B on 4 ranks, 8 micro-batches`."""
    count = timetable.pipeline.micro_batches
    many = f"{count:,} micro-batch" + ("" if count == 1 else "es")
    if layout.pp == 1:
        return f"No pipeline, {many}"
    chunks = f" × {layout.vpp} chunks" if layout.vpp > 1 else ""
    return f"{NAMES[effective_schedule(layout)]} on {layout.pp} ranks{chunks}, {many}"


def kinds_of(timetable: Timetable) -> list[Kind]:
    """Returns the kinds of passes in the schedule."""
    present = {action.kind for order in timetable.pipeline.orders for action in order}
    return [kind for kind in PASSES if kind in present]


def costs_text(timetable: Timetable) -> str:
    """Writes the durations: `F 1, B 2, a send 0`."""
    costs = timetable.costs
    passes = [f"{kind} {costs.duration(kind):g}" for kind in kinds_of(timetable)]
    if any(action.overlapped for order in timetable.pipeline.orders for action in order):
        passes.append(f"F and B that overlap {costs.pair():g}")
    return ", ".join([*passes, f"a send {costs.send:g}"])


def in_flight_text(in_flight: InFlight, chunk: int) -> str:
    """Writes `4`, or `1 + 3` if three micro-batches wait for the backward pass of the weights only."""
    whole, weights = in_flight.whole[chunk], in_flight.weights[chunk]
    return f"{whole} + {weights}" if weights else str(whole)


def report(layout: Layout, timetable: Timetable, width: int | None = None) -> Report:
    """Returns the timetable drawn with characters, and as data. width: characters; default the terminal's."""
    width = width_of_terminal() if width is None else width
    pipeline = timetable.pipeline
    several = pipeline.chunks > 1
    columns = [Column("rank", "rank"), *([Column("stage", "stage")] if several else [])]
    peak = Column("in_flight", "peak")
    in_flight = [pipeline.peak_in_flight(rank)[1] for rank in range(pipeline.ranks)]
    peaks = [[in_flight_text(counts, chunk) for chunk in range(pipeline.chunks)] for counts in in_flight]
    beside = [len(column.title) for column in columns] + [max(len(peak.title), *(len(t) for ts in peaks for t in ts))]
    chart = Chart.of(timetable, width - len(INDENT) - sum(beside) - len(GAP) * len(beside))
    columns += [Column("time", "time →", justify="left", marks=COLOURS), peak]
    rows = []
    for rank in range(pipeline.ranks):
        lines = [chart.line(timetable.spans[rank], chunk) for chunk in range(pipeline.chunks)]
        for chunk, line in enumerate(lines):
            first = [rank if chunk == 0 else None, *([pipeline.stage(rank, chunk)] if several else [])]
            rows.append(Row([*first, line, peaks[rank][chunk]]))
    answer = f"idle {units.percent(timetable.bubble)} of the time"
    sends = "" if pipeline.ranks == 1 else f"{timetable.sends:,} sends between ranks"
    table = Table(title(layout, timetable), columns, rows, sends, list(_notes(timetable, in_flight, chart)), answer)
    return Report(data(layout, timetable), [table])


def _notes(timetable: Timetable, in_flight: Sequence[InFlight], chart: Chart) -> Iterator[str]:
    pipeline = timetable.pipeline
    kinds = kinds_of(timetable)
    blank = "; blank: the rank runs another of its stages" if pipeline.chunks > 1 else ""
    yield f"{', '.join(f'{kind} {PASSES[kind]}' for kind in kinds)}; the number is the micro-batch; {IDLE} idle{blank}"
    yield f"assumed times: {costs_text(timetable)}"
    where = "the most micro-batches in flight on the rank"
    if pipeline.chunks > 1:
        where = "micro-batches in flight on the stage when its rank has the most"
    split = (
        "; after +: only the backward of the weights is left"
        if any(sum(counts.weights) for counts in in_flight)
        else ""
    )
    yield f"peak: {where}{split}"
    if pipeline.two_way:
        yield f"every stage is on two ranks; micro-batches from {pipeline.micro_batches // 2} on enter at the last rank"
    if chart.left_out:
        start, end = chart.left_out
        cut = f"from {start:g} to {end:g} of the time {timetable.time:g}"
        yield f"…: left out to fit the width, {cut}; -o FILE draws all"


class Chart(NamedTuple):
    """The scale of a drawn timetable.

    scale: characters per unit of time.
    windows: ranges of characters that are drawn, one or two.
    """

    scale: float
    windows: tuple[range, ...]

    @classmethod
    def of(cls, timetable: Timetable, room: int) -> Chart:
        """Returns a chart in which the shortest pass has room for its name; if too wide, only beginning and end."""
        shortest = min(timetable.costs.duration(a.kind) for order in timetable.pipeline.orders for a in order)
        letters = 1 + len(str(timetable.pipeline.micro_batches - 1))
        scale = letters / shortest
        whole = round(timetable.time * scale)
        if whole <= room:
            return cls(scale, (range(whole),))
        half = max(1, (room - len(LEFT_OUT)) // (2 * letters)) * letters
        return cls(scale, (range(half), range(whole - half, whole)))

    @property
    def left_out(self) -> tuple[float, float] | None:
        """(start, end) of the time that is not drawn; None if all is."""
        if len(self.windows) == 1:
            return None
        return self.windows[0].stop / self.scale, self.windows[1].start / self.scale

    def line(self, spans: Sequence[Span], chunk: int) -> str:
        """Draws a rank's passes through one chunk; blank where the rank runs another chunk."""
        return LEFT_OUT.join(self._drawn(spans, chunk, window) for window in self.windows)

    def _drawn(self, spans: Sequence[Span], chunk: int, window: range) -> str:
        letters = round(self.scale * min(span.end - span.start for span in spans))
        cells = (IDLE.ljust(letters) * (len(window) // letters + 1))[: len(window)]
        for (kind, where, micro_batch, _), start, end in sorted(spans, key=lambda span: span.action.chunk == chunk):
            first, last = round(start * self.scale), round(end * self.scale)
            shown = range(max(first, window.start), min(last, window.stop))
            if not shown:
                continue
            text = f"{kind}{micro_batch}"
            if shown.start > first or len(text) > len(shown):  # its name is outside the window
                text = ""
            text = text.ljust(len(shown), FILL) if where == chunk else " " * len(shown)
            cells = cells[: shown.start - window.start] + text + cells[shown.stop - window.start :]
        return cells


def data(layout: Layout, timetable: Timetable) -> dict[str, object]:
    """Returns the JSON document."""
    pipeline = timetable.pipeline
    return {
        "schedule": effective_schedule(layout),
        "pp": layout.pp,
        "vpp": layout.vpp,
        "num_microbatches": pipeline.micro_batches,
        "time": timetable.time,
        "bubble": timetable.bubble,
        "sends": timetable.sends,
        "by_rank": [
            {
                "rank": rank,
                "stages": [pipeline.stage(rank, chunk) for chunk in range(pipeline.chunks)],
                "most_in_flight": pipeline.most_in_flight(rank),
                "actions": [[*span.action[:3], span.start, span.end] for span in timetable.spans[rank]],
            }
            for rank in range(pipeline.ranks)
        ],
    }
