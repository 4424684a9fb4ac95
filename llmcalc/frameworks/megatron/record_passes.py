"""Records a rank's passes of a few micro-batches, which represent the whole pipeline schedule."""

from __future__ import annotations

from ...simulator.event_log import EventRecorder
from ...simulator.record_microbatches import PassRecorder, RecordedPasses
from ...simulator.tensor import Tensor
from .rank_run import ForwardOutput, ModelChunk, RankRun

MAX_RECORDED_MICROBATCHES = 3
"""Largest number of micro-batches of a recorded step, which contains every case but the first ones twice."""


def recorded_step_microbatches(microbatch_count: int, distinguishes_previous_pass: bool) -> tuple[int, int]:
    """Returns how many micro-batches each of the two recorded steps has, at most as many as a step of the run.

    microbatch_count: of a step of the run.
    distinguishes_previous_pass: as in `record_passes`; without it the second step needs one micro-batch less.
    """
    return min(microbatch_count, MAX_RECORDED_MICROBATCHES), min(
        microbatch_count, MAX_RECORDED_MICROBATCHES - (not distinguishes_previous_pass)
    )


def record_passes(
    rank_run: RankRun, recorder: EventRecorder, is_last_stage: bool, distinguishes_previous_pass: bool
) -> RecordedPasses:
    """Returns the recorded passes of a rank by kind of pass, after the set-up of the rank.

    rank_run: the rank's run, on that recorder.
    is_last_stage: whether each micro-batch's backward pass in the last chunk comes before the next one's forward pass,
        as on the last stage of a pipeline. In other chunks several micro-batches are in flight.
    distinguishes_previous_pass: whether passes differ by the chunk's previous kind of pass, because backward passes
        run layers.
    """
    rank_run.pass_recorder = pass_recorder = PassRecorder(recorder, len(rank_run.chunks), distinguishes_previous_pass)
    first_microbatches, second_microbatches = recorded_step_microbatches(
        rank_run.microbatches, distinguishes_previous_pass
    )
    for microbatch_count in (
        first_microbatches,
        second_microbatches if len(rank_run.chunks) > 1 or not is_last_stage else 1,
    ):
        rank_run.gradient_copies, rank_run.batches = [], []
        _run_passes(rank_run, microbatch_count, is_last_stage)
        rank_run.end_step()
    if distinguishes_previous_pass:
        rank_run.gradient_copies, rank_run.batches = [], []
        _run_alternating_passes(rank_run)
        rank_run.end_step()
    return pass_recorder.recorded_passes()


def _run_passes(rank_run: RankRun, microbatch_count: int, is_last_stage: bool) -> None:
    """Runs all forward passes, chunk by chunk, then all backward passes."""
    microbatches_in_flight = MicroBatchesInFlight(rank_run)
    last_chunk = rank_run.chunks[-1] if is_last_stage else None
    for model_chunk in rank_run.chunks:
        for _ in range(microbatch_count):
            microbatches_in_flight.forward(model_chunk)
            if model_chunk is last_chunk:
                microbatches_in_flight.backward(model_chunk)
    for model_chunk in reversed(rank_run.chunks):
        while microbatches_in_flight.forward_outputs[model_chunk.chunk_index]:
            microbatches_in_flight.backward(model_chunk)


def _run_alternating_passes(rank_run: RankRun) -> None:
    """Runs two forward passes of each chunk, then alternates backward and forward passes."""
    microbatches_in_flight = MicroBatchesInFlight(rank_run)
    for model_chunk in rank_run.chunks:
        for _ in range(2):
            microbatches_in_flight.forward(model_chunk)
    for model_chunk in reversed(rank_run.chunks):
        for _ in range(2):
            microbatches_in_flight.backward(model_chunk)
            microbatches_in_flight.forward(model_chunk)
        while microbatches_in_flight.forward_outputs[model_chunk.chunk_index]:
            microbatches_in_flight.backward(model_chunk)


class MicroBatchesInFlight:
    """The micro-batches of each chunk that wait for a backward pass. rank_run: the rank's training run."""

    def __init__(self, rank_run: RankRun) -> None:
        self.rank_run = rank_run
        self.chunk_inputs: list[list[Tensor | None]] = [[] for _ in rank_run.chunks]
        self.forward_outputs: list[list[ForwardOutput]] = [[] for _ in rank_run.chunks]

    def forward(self, model_chunk: ModelChunk) -> None:
        """Runs the forward pass of the next micro-batch of a chunk."""
        chunk_input = None if model_chunk.is_first else self.rank_run.receive_hidden_states()
        forward_output = self.rank_run.forward(model_chunk, chunk_input)
        self.chunk_inputs[model_chunk.chunk_index].append(chunk_input)
        self.forward_outputs[model_chunk.chunk_index].append(forward_output)
        forward_output.free()

    def backward(self, model_chunk: ModelChunk) -> None:
        """Runs the backward pass of the oldest waiting micro-batch of a chunk."""
        gradient = None if model_chunk.is_last else self.rank_run.receive_gradient()
        chunk_input = self.chunk_inputs[model_chunk.chunk_index].pop(0)
        forward_output = self.forward_outputs[model_chunk.chunk_index].pop(0)
        self.rank_run.backward(chunk_input, forward_output, gradient)
