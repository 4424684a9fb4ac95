"""Records a rank's passes with a few micro-batches, which represent the whole schedule."""

from __future__ import annotations

from collections.abc import Mapping

from ...simulator.event_log import Recorder
from ...simulator.repeat_microbatches import PassCase, PassRecorder, PassTrace
from ...simulator.tensor import Tensor
from .schedule import Chunk, ForwardOutput, RankRun

STEPS = 3, 3
"""Micro-batches of each step, so that every case but the first ones comes twice where it can."""


def record_passes(run: RankRun, recorder: Recorder, is_last_stage: bool) -> Mapping[PassCase, PassTrace]:
    """Records the events of each kind of pass of a rank.

    run: the rank's run, on that recorder.
    is_last_stage: whether each micro-batch's backward pass in the last chunk comes before the next one's forward pass,
        as on the last stage of a pipeline. In other chunks several micro-batches are in flight.
    Raises `NotRepeating` if passes that should be alike are not.
    """
    run.set_up()
    run.passes = passes = PassRecorder(recorder, len(run.chunks))
    for count in STEPS if len(run.chunks) > 1 or not is_last_stage else (STEPS[0], 1):
        run.gradient_copies, run.batches = [], []
        _passes(run, count, is_last_stage)
        run.end_step()
    return passes.traces()


def _passes(run: RankRun, count: int, is_last_stage: bool) -> None:
    """Runs all forward passes, chunk by chunk, then all backward passes."""
    inputs: list[list[Tensor | None]] = [[] for _ in run.chunks]
    outputs: list[list[ForwardOutput]] = [[] for _ in run.chunks]

    def run_backward(chunk: Chunk) -> None:
        """Runs the backward pass of the oldest waiting micro-batch of a chunk."""
        gradient = None if chunk.last else run.receive_gradient()
        x, output = inputs[chunk.number].pop(0), outputs[chunk.number].pop(0)
        run.backward(x, output, gradient)

    last = run.chunks[-1] if is_last_stage else None
    for chunk in run.chunks:
        for _ in range(count):
            x = None if chunk.first else run.receive_hidden()
            output = run.forward(chunk, x)
            inputs[chunk.number].append(x)
            outputs[chunk.number].append(output)
            output.free()
            del x, output
            if chunk is last:
                run_backward(chunk)
    for chunk in reversed(run.chunks):
        while outputs[chunk.number]:
            run_backward(chunk)
