"""Closed forms of pipeline schedules, which equal the results of `schedules` and their timetables."""

from __future__ import annotations

from collections.abc import Sequence

from .layout import Layout
from .schedules import (
    InFlightCounts,
    Pipeline,
    check_micro_batches,
    effective_schedule,
    interleaved_order,
    pipeline,
    timetable,
)


def peak_in_flight(
    layout: Layout, micro_batches: int, rank: int, bytes_of_chunks: Sequence[int]
) -> tuple[int, InFlightCounts]:
    """Returns the most bytes of micro-batches in flight on a rank, and each chunk's number of these micro-batches.

    bytes_of_chunks: per chunk, the bytes of a micro-batch in flight. Of an interleaved schedule only the order of the
        one rank is made.
    """
    check_micro_batches(layout, micro_batches)
    schedule = effective_schedule(layout)
    if schedule == "1f1b" or layout.pp == 1:
        (chunk_bytes,), microbatches_in_flight = bytes_of_chunks, min(micro_batches, layout.pp - rank)
        return chunk_bytes * microbatches_in_flight, InFlightCounts((microbatches_in_flight,), (0,))
    if schedule == "interleaved":
        rank_actions = interleaved_order(layout.pp, layout.vpp, micro_batches, layout.pp, rank)
        return Pipeline(layout.pp, layout.vpp, micro_batches, (rank_actions,)).peak_in_flight(0, bytes_of_chunks)
    return pipeline(layout, micro_batches).peak_in_flight(rank, bytes_of_chunks)


def bubble_fraction(layout: Layout, micro_batches: int) -> float:
    """Returns the idle fraction of a rank's step, if backward passes take twice as long as forward passes.

    Ranks of 1F1B and of interleaved schedules wait only for the first micro-batch to reach the last of them, and for
    its gradient to come back (Narayanan 2021, §2.2): the time of pp − 1 passes of a chunk, forward and backward.
    """
    if layout.pp == 1:
        return 0.0
    check_micro_batches(layout, micro_batches)
    if effective_schedule(layout) in ("1f1b", "interleaved"):
        return (layout.pp - 1) / (micro_batches * layout.vpp + layout.pp - 1)
    return timetable(pipeline(layout, micro_batches)).bubble
