"""Closed forms of schedules equal what their orders and their timetable give."""

from __future__ import annotations

import pytest

from llmcalc.errors import InputError
from llmcalc.parallel.layout import Layout, Schedule
from llmcalc.parallel.schedule_formulas import bubble_fraction, peak_in_flight
from llmcalc.parallel.schedules import pipeline, timetable


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "zb-h1", "dualpipe"])
def test_they_equal_the_orders(schedule: Schedule) -> None:
    compared = 0
    for pp in (2, 4, 6) if schedule == "dualpipe" else (1, 2, 3, 4, 6):
        for vpp in (2, 4) if schedule == "interleaved" else (1,):
            layout = Layout(pp=pp, vpp=vpp if pp > 1 else 1, schedule=schedule if pp > 1 else "1f1b")
            for micro_batches in range(1, 3 * pp * vpp + 1):
                try:
                    orders = pipeline(layout, micro_batches)
                except InputError:
                    continue
                sizes = [7, 5, 11, 3][: orders.chunk_count]
                for rank in range(pp):
                    assert peak_in_flight(layout, micro_batches, rank, sizes) == orders.peak_in_flight(rank, sizes)
                assert bubble_fraction(layout, micro_batches) == (0 if pp == 1 else timetable(orders).bubble)
                compared += 1
    assert compared > 8


def test_a_rank_has_no_more_in_flight_than_the_one_before() -> None:
    for layout in (Layout(pp=8), Layout(pp=4, vpp=3, schedule="interleaved")):
        for micro_batches in (layout.pp, 2 * layout.pp, 8 * layout.pp):
            sizes = [5, 3, 7][: layout.vpp]
            peaks = [peak_in_flight(layout, micro_batches, rank, sizes)[0] for rank in range(layout.pp)]
            assert peaks == sorted(peaks, reverse=True)
