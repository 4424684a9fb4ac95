"""The passes of a rank, recorded with few micro-batches, which stand for those of a whole schedule."""

from __future__ import annotations

from collections.abc import Mapping

from ...kernels.tensor import Tensor
from ..passes import Case, Rehearsal, Trace
from ..recording import Recorder
from .run import Output, RankRun

STEPS = {True: (3, 3), False: (3, 1)}
"""Micro-batches of each step, so that every case but the first ones comes twice; whether several are in flight."""


def rehearsed(run: RankRun, recorder: Recorder, flying: bool) -> Mapping[Case, Trace]:
    """What the passes of a rank do.

    run: of the rank, on that recorder. flying: whether a forward pass follows another before the backward pass of that;
    if not, both passes of each micro-batch follow each other.
    Raises `Irregular` if passes that should be alike are not.
    """
    run.set_up()
    run.passes = passes = Rehearsal(recorder, len(run.chunks))
    for count in STEPS[flying]:
        run.copies, run.batches = [], []
        if flying:
            _in_flight(run, count)
        else:
            _one_by_one(run, count)
        run.end_step()
    return passes.traces()


def _one_by_one(run: RankRun, count: int) -> None:
    for _ in range(count):
        for chunk in run.chunks:
            x = None if chunk.first else run.received()
            output = run.forward(chunk, x)
            run.backward(x, output, None if chunk.last else run.sent_back())


def _in_flight(run: RankRun, count: int) -> None:
    """All forward passes, chunk by chunk, then all backward passes."""
    entered: list[list[Tensor | None]] = [[] for _ in run.chunks]
    outputs: list[list[Output]] = [[] for _ in run.chunks]
    for chunk in run.chunks:
        for _ in range(count):
            x = None if chunk.first else run.received()
            output = run.forward(chunk, x)
            entered[chunk.number].append(x)
            outputs[chunk.number].append(output)
            output.free()
    for chunk in reversed(run.chunks):
        for _ in range(count):
            gradient = None if chunk.last else run.sent_back()
            x, output = entered[chunk.number].pop(0), outputs[chunk.number].pop(0)
            run.backward(x, output, gradient)
