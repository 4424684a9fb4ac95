"""Records a rank's passes with a few micro-batches, which represent the whole pipeline schedule."""

from __future__ import annotations

from ...simulator.event_log import Recorder
from ...simulator.repeat_microbatches import PassRecorder, RecordedPasses
from ...simulator.tensor import Tensor
from .schedule import Chunk, ForwardOutput, RankRun

STEPS = 3, 3
"""Micro-batches of each step, so that every case but the first ones comes twice where it can."""


def record_passes(run: RankRun, recorder: Recorder, is_last_stage: bool, by_previous: bool) -> RecordedPasses:
    """Returns the recorded passes of each class of a rank, after its set-up.

    run: the rank's run, on that recorder.
    is_last_stage: whether each micro-batch's backward pass in the last chunk comes before the next one's forward pass,
        as on the last stage of a pipeline. In other chunks several micro-batches are in flight.
    by_previous: whether passes differ by the kind of the chunk's previous pass, because backward passes run layers.
    """
    run.passes = passes = PassRecorder(recorder, len(run.chunks), by_previous)
    for count in STEPS if len(run.chunks) > 1 or not is_last_stage else (STEPS[0], 1):
        run.gradient_copies, run.batches = [], []
        _run_passes(run, count, is_last_stage)
        run.end_step()
    if by_previous:
        run.gradient_copies, run.batches = [], []
        _run_alternating_passes(run)
        run.end_step()
    return passes.recorded()


def _run_passes(run: RankRun, count: int, is_last_stage: bool) -> None:
    """Runs all forward passes, chunk by chunk, then all backward passes."""
    in_flight = InFlight(run)
    last_chunk = run.chunks[-1] if is_last_stage else None
    for chunk in run.chunks:
        for _ in range(count):
            in_flight.forward(chunk)
            if chunk is last_chunk:
                in_flight.backward(chunk)
    for chunk in reversed(run.chunks):
        while in_flight.outputs[chunk.number]:
            in_flight.backward(chunk)


def _run_alternating_passes(run: RankRun) -> None:
    """Runs two forward passes of each chunk, then backward and forward passes in turn."""
    flights = InFlight(run)
    for chunk in run.chunks:
        for _ in range(2):
            flights.forward(chunk)
    for chunk in reversed(run.chunks):
        for _ in range(2):
            flights.backward(chunk)
            flights.forward(chunk)
        while flights.outputs[chunk.number]:
            flights.backward(chunk)


class InFlight:
    """The micro-batches of each chunk whose backward passes have not run yet. run: the rank's training run."""

    def __init__(self, run: RankRun) -> None:
        self.run = run
        self.inputs: list[list[Tensor | None]] = [[] for _ in run.chunks]
        self.outputs: list[list[ForwardOutput]] = [[] for _ in run.chunks]

    def forward(self, chunk: Chunk) -> None:
        """Runs the forward pass of the next micro-batch of a chunk."""
        x = None if chunk.first else self.run.receive_hidden()
        output = self.run.forward(chunk, x)
        self.inputs[chunk.number].append(x)
        self.outputs[chunk.number].append(output)
        output.free()

    def backward(self, chunk: Chunk) -> None:
        """Runs the backward pass of the oldest waiting micro-batch of a chunk."""
        gradient = None if chunk.last else self.run.receive_gradient()
        x, output = self.inputs[chunk.number].pop(0), self.outputs[chunk.number].pop(0)
        self.run.backward(x, output, gradient)
