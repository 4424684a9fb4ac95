"""The passes of a rank, recorded with few micro-batches, which stand for those of a whole schedule."""

from __future__ import annotations

from collections.abc import Mapping

from ...simulator.event_log import Recorder
from ...simulator.repeat_microbatches import PassCase, PassRecorder, PassTrace
from ...simulator.tensor import Tensor
from .schedule import Chunk, Output, RankRun

STEPS = 3, 3
"""Micro-batches of each step, so that every case but the first ones comes twice where it can."""


def rehearsed(run: RankRun, recorder: Recorder, alone: bool) -> Mapping[PassCase, PassTrace]:
    """What the passes of a rank do.

    run: of the rank, on that recorder. alone: whether in its last chunk each micro-batch's backward pass comes before
    the next one's forward pass, as on the last rank of a pipeline. In other chunks several are in flight.
    Raises `NotRepeating` if passes that should be alike are not.
    """
    run.set_up()
    run.passes = passes = PassRecorder(recorder, len(run.chunks))
    for count in STEPS if len(run.chunks) > 1 or not alone else (STEPS[0], 1):
        run.copies, run.batches = [], []
        _passes(run, count, alone)
        run.end_step()
    return passes.traces()


def _passes(run: RankRun, count: int, alone: bool) -> None:
    """All forward passes, chunk by chunk, then all backward passes."""
    entered: list[list[Tensor | None]] = [[] for _ in run.chunks]
    outputs: list[list[Output]] = [[] for _ in run.chunks]

    def back(chunk: Chunk) -> None:
        gradient = None if chunk.last else run.sent_back()
        x, output = entered[chunk.number].pop(0), outputs[chunk.number].pop(0)
        run.backward(x, output, gradient)

    last = run.chunks[-1] if alone else None
    for chunk in run.chunks:
        for _ in range(count):
            x = None if chunk.first else run.received()
            output = run.forward(chunk, x)
            entered[chunk.number].append(x)
            outputs[chunk.number].append(output)
            output.free()
            del x, output
            if chunk is last:
                back(chunk)
    for chunk in reversed(run.chunks):
        while outputs[chunk.number]:
            back(chunk)
