"""The report of `llmcalc plot schedule` as text: a row per stage along the time, and micro-batches in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .. import units
from ..parallel.layout import Layout, Schedule
from ..parallel.schedules import ActionSpan, InFlightCounts, PassKind, Timetable, effective_schedule
from .document import Column, Report, Table, row
from .formats.pipe import COLUMN_GAP, INDENT, width_of_terminal

SCHEDULE_NAMES: dict[Schedule, str] = {
    "1f1b": "1F1B",
    "interleaved": "Interleaved 1F1B",
    "zb-h1": "ZB-H1",
    "dualpipe": "DualPipe",
}
"""Schedule → its name in its paper."""

PASS_NAMES: dict[PassKind, str] = {
    "F": "forward",
    "B": "backward",
    "I": "backward of the inputs",
    "W": "backward of the weights",
}
"""Letter of a pass → its name."""

PASS_COLOURS = {r"F\d+-*": "cyan", r"[BI]\d+-*": "green", r"W\d+-*": "yellow"}
"""Regular expression of a pass → its colour on a terminal."""

FILL_CHARACTER, IDLE_CHARACTER, ELLIPSIS = "-", ".", " … "


def schedule_title(layout: Layout, timetable: Timetable) -> str:
    """Returns a pipeline schedule's name and sizes as text: `1F1B on 4 ranks, 8 micro-batches`."""
    micro_batches = timetable.pipeline.micro_batches
    microbatch_text = f"{micro_batches:,} micro-batch" + ("" if micro_batches == 1 else "es")
    if layout.pp == 1:
        return f"No pipeline, {microbatch_text}"
    chunks_text = f" × {layout.vpp} chunks" if layout.vpp > 1 else ""
    return f"{SCHEDULE_NAMES[effective_schedule(layout)]} on {layout.pp} ranks{chunks_text}, {microbatch_text}"


def pass_kinds_of(timetable: Timetable) -> list[PassKind]:
    """Returns the kinds of passes (forward, backward, …) in a pipeline schedule."""
    present_letters = {
        action.pass_kind for rank_actions in timetable.pipeline.actions_by_rank for action in rank_actions
    }
    return [pass_letter for pass_letter in PASS_NAMES if pass_letter in present_letters]


def costs_text(timetable: Timetable) -> str:
    """Returns the durations of passes and sends, in time units, as text: `F 1, B 2, a send 0`."""
    pass_costs = timetable.pass_durations
    pass_texts = [f"{pass_letter} {pass_costs.duration(pass_letter):g}" for pass_letter in pass_kinds_of(timetable)]
    if any(
        pass_action.is_overlapped for rank_actions in timetable.pipeline.actions_by_rank for pass_action in rank_actions
    ):
        pass_texts.append(f"F and B that overlap {pass_costs.overlapped_duration():g}")
    return ", ".join([*pass_texts, f"a send {pass_costs.send_time:g}"])


def in_flight_text(in_flight: InFlightCounts, model_chunk: int) -> str:
    """Returns micro-batches in flight as text: `4`, or `1 + 3` if three lack only the weight-gradient pass."""
    awaiting_backward = in_flight.awaiting_backward[model_chunk]
    awaiting_weight_gradients = in_flight.awaiting_weight_gradients[model_chunk]
    return f"{awaiting_backward} + {awaiting_weight_gradients}" if awaiting_weight_gradients else str(awaiting_backward)


def report(layout: Layout, timetable: Timetable, width: int | None = None) -> Report:
    """Returns the timetable drawn with characters, and as data. width: characters; default the terminal's."""
    width = width_of_terminal() if width is None else width
    pipeline = timetable.pipeline
    has_several_chunks = pipeline.chunk_count > 1
    table_columns = [Column("rank", "rank"), *([Column("stage", "stage")] if has_several_chunks else [])]
    peak_column = Column("in_flight", "peak")
    in_flight_counts = [pipeline.peak_in_flight(rank)[1] for rank in range(pipeline.ranks)]
    peak_texts = [
        [in_flight_text(in_flight, chunk_index) for chunk_index in range(pipeline.chunk_count)]
        for in_flight in in_flight_counts
    ]
    column_widths = [len(column.title) for column in table_columns] + [
        max(len(peak_column.title), *(len(cell_text) for cell_texts in peak_texts for cell_text in cell_texts))
    ]
    free_width = width - len(INDENT) - sum(column_widths) - len(COLUMN_GAP) * len(column_widths)
    timetable_chart = TimetableChart.from_timetable(timetable, free_width)
    table_columns += [Column("time", "time →", justify="left", mark_colours=PASS_COLOURS), peak_column]
    table_rows = []
    for rank in range(pipeline.ranks):
        chart_lines = [
            timetable_chart.draw_line(timetable.spans_by_rank[rank], chunk_index)
            for chunk_index in range(pipeline.chunk_count)
        ]
        for model_chunk, chart_line in enumerate(chart_lines):
            stage_cells = [
                rank if model_chunk == 0 else None,
                *([pipeline.stage(rank, model_chunk)] if has_several_chunks else []),
            ]
            table_rows.append(row(*stage_cells, chart_line, peak_texts[rank][model_chunk]))
    headline_text = f"idle {units.percent(timetable.bubble)} of the time"
    sends_text = "" if pipeline.ranks == 1 else f"{timetable.message_count:,} sends between ranks"
    notes = list(_schedule_notes(timetable, in_flight_counts, timetable_chart))
    table = Table(schedule_title(layout, timetable), table_columns, table_rows, sends_text, notes, headline_text)
    return Report(schedule_data(layout, timetable), [table])


def _schedule_notes(
    timetable: Timetable, in_flight_counts: Sequence[InFlightCounts], timetable_chart: TimetableChart
) -> Iterator[str]:
    pipeline = timetable.pipeline
    pass_letters = pass_kinds_of(timetable)
    blank_text = "; blank: the rank runs another of its stages" if pipeline.chunk_count > 1 else ""
    kinds_text = ", ".join(f"{pass_letter} {PASS_NAMES[pass_letter]}" for pass_letter in pass_letters)
    yield f"{kinds_text}; the number is the micro-batch; {IDLE_CHARACTER} idle{blank_text}"
    yield f"assumed times: {costs_text(timetable)}"
    peak_rank_text = "the most micro-batches in flight on the rank"
    if pipeline.chunk_count > 1:
        peak_rank_text = "micro-batches in flight on the stage when its rank has the most"
    split_text = ""
    if any(sum(in_flight_count.awaiting_weight_gradients) for in_flight_count in in_flight_counts):
        split_text = "; after +: only the backward of the weights is left"
    yield f"peak: {peak_rank_text}{split_text}"
    if pipeline.is_bidirectional:
        yield f"every stage is on two ranks; micro-batches from {pipeline.micro_batches // 2} on enter at the last rank"
    if timetable_chart.omitted_interval:
        gap_start, gap_end = timetable_chart.omitted_interval
        gap_text = f"from {gap_start:g} to {gap_end:g} of the time {timetable.total_time:g}"
        yield f"…: left out to fit the width, {gap_text}; -o FILE draws all"


class TimetableChart(NamedTuple):
    """A timetable drawn with characters, with a scale and a time range.

    columns_per_unit: characters per unit of time.
    shown_ranges: ranges of characters that are drawn, one or two.
    """

    columns_per_unit: float
    shown_ranges: tuple[range, ...]

    @classmethod
    def from_timetable(cls, timetable: Timetable, free_width: int) -> TimetableChart:
        """Returns a chart in which the shortest pass has room for its name. A chart that is too wide is shortened."""
        shortest_duration = min(
            timetable.pass_durations.duration(action.pass_kind)
            for rank_actions in timetable.pipeline.actions_by_rank
            for action in rank_actions
        )
        name_width = 1 + len(str(timetable.pipeline.micro_batches - 1))
        columns_per_unit = name_width / shortest_duration
        total_columns = round(timetable.total_time * columns_per_unit)
        if total_columns <= free_width:
            return cls(columns_per_unit, (range(total_columns),))
        half_columns = max(1, (free_width - len(ELLIPSIS)) // (2 * name_width)) * name_width
        return cls(columns_per_unit, (range(half_columns), range(total_columns - half_columns, total_columns)))

    @property
    def omitted_interval(self) -> tuple[float, float] | None:
        """The (start, end) of the time that the chart leaves out; None if the chart shows the whole step."""
        if len(self.shown_ranges) == 1:
            return None
        return self.shown_ranges[0].stop / self.columns_per_unit, self.shown_ranges[1].start / self.columns_per_unit

    def draw_line(self, rank_spans: Sequence[ActionSpan], model_chunk: int) -> str:
        """Returns a line of characters: a rank's passes through a model chunk, with blanks for other chunks."""
        return ELLIPSIS.join(
            self._draw_span(rank_spans, model_chunk, shown_columns) for shown_columns in self.shown_ranges
        )

    def _draw_span(self, rank_spans: Sequence[ActionSpan], model_chunk: int, shown_columns: range) -> str:
        name_width = round(
            self.columns_per_unit * min(pass_span.end_time - pass_span.start_time for pass_span in rank_spans)
        )
        line_text = (IDLE_CHARACTER.ljust(name_width) * (len(shown_columns) // name_width + 1))[: len(shown_columns)]
        for (pass_letter, span_chunk, micro_batch, _), span_start, span_end in sorted(
            rank_spans, key=lambda pass_span: pass_span.action.chunk_index == model_chunk
        ):
            first_column = round(span_start * self.columns_per_unit)
            last_column = round(span_end * self.columns_per_unit)
            visible_columns = range(max(first_column, shown_columns.start), min(last_column, shown_columns.stop))
            if not visible_columns:
                continue
            pass_name = f"{pass_letter}{micro_batch}"
            # its name is outside the window
            if visible_columns.start > first_column or len(pass_name) > len(visible_columns):
                pass_name = ""
            if span_chunk == model_chunk:
                pass_name = pass_name.ljust(len(visible_columns), FILL_CHARACTER)
            else:
                pass_name = " " * len(visible_columns)
            line_text = (
                line_text[: visible_columns.start - shown_columns.start]
                + pass_name
                + line_text[visible_columns.stop - shown_columns.start :]
            )
        return line_text


def schedule_data(layout: Layout, timetable: Timetable) -> dict[str, object]:
    """Returns a pipeline schedule's JSON document: the passes of every rank with times."""
    pipeline = timetable.pipeline
    by_rank = [
        {
            "rank": rank,
            "stages": [pipeline.stage(rank, model_chunk) for model_chunk in range(pipeline.chunk_count)],
            "most_in_flight": pipeline.most_in_flight(rank),
            "actions": [
                [*action_span.action[:3], action_span.start_time, action_span.end_time]
                for action_span in timetable.spans_by_rank[rank]
            ],
        }
        for rank in range(pipeline.ranks)
    ]
    return {
        "schedule": effective_schedule(layout),
        "pp": layout.pp,
        "vpp": layout.vpp,
        "num_microbatches": pipeline.micro_batches,
        "time": timetable.total_time,
        "bubble": timetable.bubble,
        "sends": timetable.message_count,
        "by_rank": by_rank,
    }
