"""Runs the passes of a training step in the order of Megatron-LM's pipeline schedules.

A variable that holds a tensor here lives as long as Megatron's own variable.

Source: Megatron-LM, megatron/core/pipeline_parallel/schedules.py.
"""

from __future__ import annotations

from ...simulator.tensor import Tensor
from .rank_run import ForwardOutput, RankRun


def run_step(rank_run: RankRun) -> None:
    """Runs one training step of a rank."""
    rank_run.gradient_copies, rank_run.batches = [], []
    _run_passes(rank_run)
    rank_run.end_step()


def _run_passes(rank_run: RankRun) -> None:
    """Runs the forward and backward passes of a step."""
    if rank_run.layout.pp == 1:
        _run_without_pipeline(rank_run)
    elif rank_run.layout.vpp == 1:
        _run_1f1b(rank_run)
    else:
        InterleavedSchedule(rank_run).run()


def _run_without_pipeline(rank_run: RankRun) -> None:
    """Runs the passes of all micro-batches without a pipeline (`forward_backward_no_pipelining`).

    Where the passes of two micro-batches overlap, one enters a layer while the other leaves one. Both together save
    as much as one pass, and the loss comes after the last layer of both
    (core/pipeline_parallel/combined_1f1b.py, models/common/model_chunk_schedule_plan.py, `run`).
    """
    for _ in range(rank_run.microbatches):
        forward_output = rank_run.forward(rank_run.chunks[0], None)
        rank_run.backward(None, forward_output, None)


def _run_1f1b(rank_run: RankRun) -> None:
    """Runs the 1F1B pipeline schedule (`forward_backward_pipelining_without_interleaving`)."""
    (chunk,), microbatches = rank_run.chunks, rank_run.microbatches
    warmup_microbatches = min(rank_run.layout.pp - rank_run.coordinates.pp - 1, microbatches)
    stage_inputs: list[Tensor | None] = []
    forward_outputs: list[ForwardOutput] = []
    for _ in range(warmup_microbatches):
        stage_input = None if chunk.is_first else rank_run.receive_hidden_states()
        forward_output = rank_run.forward(chunk, stage_input)
        stage_inputs.append(stage_input)
        forward_outputs.append(forward_output)
        forward_output.free()
    remaining_microbatches = microbatches - warmup_microbatches
    if remaining_microbatches:
        stage_input = None if chunk.is_first else rank_run.receive_hidden_states()
    for microbatch in range(remaining_microbatches):
        forward_output = rank_run.forward(chunk, stage_input)
        gradient = None if chunk.is_last else rank_run.receive_gradient()
        stage_inputs.append(stage_input)
        forward_outputs.append(forward_output)
        forward_output.free()
        stage_input, forward_output = stage_inputs.pop(0), forward_outputs.pop(0)
        input_gradient = rank_run.backward(stage_input, forward_output, gradient)
        stage_input = (
            None if chunk.is_first or microbatch == remaining_microbatches - 1 else rank_run.receive_hidden_states()
        )
    for _ in range(warmup_microbatches):
        stage_input, forward_output = stage_inputs.pop(0), forward_outputs.pop(0)
        gradient = None if chunk.is_last else rank_run.receive_gradient()
        input_gradient = rank_run.backward(stage_input, forward_output, gradient)
    del input_gradient


class InterleavedSchedule:
    """The order in which one rank of an interleaved 1F1B pipeline runs its passes.

    Attributes that hold tensors live as long as the variables of Megatron's function
    (`forward_backward_pipelining_with_interleaving`).

    chunk_order: the chunk of each forward pass.
    forward_pass_count: forward passes of a step.
    warmup_pass_count: forward passes before the first backward pass.
    remaining_pass_count: forward passes that are each followed by a backward pass.
    prefetches_input: whether warm-up and cool-down receive the next pass's tensor before they run a pass; the first
        stage receives inputs afterwards, and the last stage gradients.
    """

    def __init__(self, rank_run: RankRun) -> None:
        settings = rank_run.settings
        self.rank_run: RankRun = rank_run
        self.pp: int = rank_run.layout.pp
        self.chunk_count: int = len(rank_run.chunks)
        stage_index = rank_run.coordinates.pp
        group_size = settings.microbatch_group_size_per_virtual_pipeline_stage or self.pp
        runs_every_microbatch = rank_run.retains_batches or rank_run.rank_choices.wgrad_deferral_limit is not None
        microbatch_count = (
            settings.microbatches if runs_every_microbatch else min(settings.microbatches, max(3 * group_size, self.pp))
        )
        if settings.microbatches % group_size == 0:
            microbatch_count = max(group_size, microbatch_count // group_size * group_size)
        self.chunk_order: list[int] = []
        for first_microbatch in range(0, microbatch_count, group_size):
            group_microbatches = min(group_size, microbatch_count - first_microbatch)
            self.chunk_order += [index for index in range(self.chunk_count) for _ in range(group_microbatches)]
        self.forward_pass_count: int = microbatch_count * self.chunk_count
        self.warmup_pass_count: int = min(
            self.forward_pass_count, (self.pp - stage_index - 1) * 2 + (self.chunk_count - 1) * group_size
        )
        self.remaining_pass_count: int = self.forward_pass_count - self.warmup_pass_count
        self.overlaps_communication: bool = not settings.no_overlap_p2p_communication
        self.prefetches_input: bool = settings.overlap_p2p_communication_warmup_flush
        self.first: bool = stage_index == 0
        self.last: bool = stage_index == self.pp - 1
        self.inputs: list[list[Tensor | None]] = [[] for _ in rank_run.chunks]
        self.outputs: list[list[ForwardOutput]] = [[] for _ in rank_run.chunks]
        self.gradients: list[list[Tensor | None]] = [[] for _ in rank_run.chunks]
        self.forward_buffer: list[Tensor | None] = [None] * (group_size - self.pp + 1 if self.first else 1)
        self.backward_buffer: list[Tensor | None] = [None] * (group_size - self.pp + 1 if self.last else 1)
        self.output: ForwardOutput | None = None
        self.input_tensor: Tensor | None = None
        self.output_gradient: Tensor | None = None
        self.input_gradient: Tensor | None = None

    def chunk_of_slot(self, slot_number: int, is_forward: bool) -> int:
        """Returns the chunk that runs in the forward or backward slot number `slot_number` of the schedule."""
        chunk_index = self.chunk_order[slot_number % self.forward_pass_count]
        return chunk_index if is_forward else self.chunk_count - 1 - chunk_index

    def is_first(self, chunk_index: int) -> bool:
        """Whether a chunk has the model's first layers."""
        return self.first and chunk_index == 0

    def is_last(self, chunk_index: int) -> bool:
        """Whether a chunk has the model's last layers."""
        return self.last and chunk_index == self.chunk_count - 1

    def next_received_chunk(self, slot_number: int, is_forward: bool) -> tuple[bool, int]:
        """Returns whether the rank receives a tensor after a slot, and the chunk that reads this tensor."""
        if not (self.first if is_forward else self.last):
            return True, self.chunk_of_slot(slot_number + 1, is_forward)
        if slot_number < self.pp - 1:
            return False, self.chunk_of_slot(slot_number + 1, is_forward) + (1 if is_forward else -1)
        chunk_index = self.chunk_of_slot(slot_number - (self.pp - 1), is_forward)
        return chunk_index != (self.chunk_count - 1 if is_forward else 0), chunk_index + (1 if is_forward else -1)

    def forward(self, slot_number: int) -> ForwardOutput:
        """Runs the forward pass of slot number `slot_number` of the schedule."""
        chunk_index = self.chunk_of_slot(slot_number, True)
        if self.is_first(chunk_index) and len(self.inputs[chunk_index]) == len(self.outputs[chunk_index]):
            self.inputs[chunk_index].append(None)
        stage_input = self.inputs[chunk_index][len(self.outputs[chunk_index])]
        forward_output = self.rank_run.forward(self.rank_run.chunks[chunk_index], stage_input)
        self.outputs[chunk_index].append(forward_output)
        return forward_output

    def backward(self, slot_number: int) -> Tensor | None:
        """Runs the backward pass of schedule slot `slot_number`. Returns the gradient of the chunk's input."""
        chunk_index = self.chunk_of_slot(slot_number, False)
        if self.is_last(chunk_index) and not self.gradients[chunk_index]:
            self.gradients[chunk_index].append(None)
        stage_input, forward_output = self.inputs[chunk_index].pop(0), self.outputs[chunk_index].pop(0)
        gradient = self.gradients[chunk_index].pop(0)
        return self.rank_run.backward(stage_input, forward_output, gradient)

    def run(self) -> None:
        """Runs the schedule's three phases: warm-up, alternating forward and backward passes, and cool-down."""
        self.inputs[0].append(None if self.is_first(0) else self.rank_run.receive_hidden_states())
        for slot_number in range(self.warmup_pass_count):
            self._run_warm_up(slot_number)
        for slot_number in range(self.remaining_pass_count):
            if self.overlaps_communication:
                self._forward_and_backward_overlapped(slot_number)
            else:
                self._forward_and_backward(slot_number)
        if self.output is not None:
            self.output.free()
        if not self.remaining_pass_count:
            self.gradients[-1].append(None if self.last else self.rank_run.receive_gradient())
        for slot_number in range(self.remaining_pass_count, self.forward_pass_count):
            self._run_cool_down(slot_number)

    def _run_warm_up(self, slot_number: int) -> None:
        """Runs a warm-up forward pass. The last warm-up pass also receives the first gradient."""
        receives_input, next_chunk_index = self.next_received_chunk(slot_number, True)
        receives_input = receives_input and slot_number != self.forward_pass_count - 1
        receives_gradient = slot_number == self.warmup_pass_count - 1 and self.remaining_pass_count > 0
        buffer_index = slot_number % len(self.forward_buffer)
        if self.prefetches_input and not self.first:
            self.forward_buffer[buffer_index] = self.rank_run.receive_hidden_states() if receives_input else None
        self.output = self.forward(slot_number)
        if self.is_last(self.chunk_of_slot(slot_number, True)):
            self.output = None
        if not self.prefetches_input:
            self.input_tensor = self.rank_run.receive_hidden_states() if receives_input else None
        elif self.first:
            self.forward_buffer[buffer_index] = self.rank_run.receive_hidden_states() if receives_input else None
        if receives_gradient and not self.overlaps_communication:
            self.gradients[-1].append(None if self.last else self.rank_run.receive_gradient())
        if receives_input and not self.prefetches_input:
            self.inputs[next_chunk_index].append(self.input_tensor)
        elif receives_input:
            self.inputs[next_chunk_index].append(self.forward_buffer[buffer_index])
            self.forward_buffer[(slot_number + 1) % len(self.forward_buffer)] = None
        if self.output is not None:
            self.output.free()
        if receives_gradient and self.overlaps_communication and not self.last:
            self.backward_buffer[-1] = self.rank_run.receive_gradient()
            self.gradients[-1].append(self.backward_buffer[-1])

    def _forward_and_backward(self, slot_number: int) -> None:
        """Runs one forward and one backward pass, then the communication. slot_number: index of the backward pass."""
        forward_slot = slot_number + self.warmup_pass_count
        self.output = self.forward(forward_slot)
        self.input_gradient = self.backward(slot_number)
        if self.is_last(self.chunk_of_slot(forward_slot, True)):
            self.output = None
        if self.is_first(self.chunk_of_slot(slot_number, False)):
            self.input_gradient = None
        receives_input, next_chunk_index = self.next_received_chunk(forward_slot, True)
        receives_input = receives_input and slot_number != self.remaining_pass_count - 1
        receives_gradient, gradient_chunk_index = self.next_received_chunk(slot_number, False)
        self.input_tensor = self.rank_run.receive_hidden_states() if receives_input else None
        self.output_gradient = self.rank_run.receive_gradient() if receives_gradient else None
        if self.output is not None:
            self.output.free()
        if receives_input:
            self.inputs[next_chunk_index].append(self.input_tensor)
        if receives_gradient:
            self.gradients[gradient_chunk_index].append(self.output_gradient)

    def _forward_and_backward_overlapped(self, slot_number: int) -> None:
        """Runs one forward and one backward pass, with overlapped communication."""
        rank, forward_slot = self.rank_run, slot_number + self.warmup_pass_count
        if self.output is not None:
            self.output.free()
        forward_output: ForwardOutput | None = self.forward(forward_slot)
        if self.is_last(self.chunk_of_slot(forward_slot, True)):
            forward_output = None
        receives_input, next_chunk_index = self.next_received_chunk(forward_slot, True)
        receives_input = receives_input and slot_number != self.remaining_pass_count - 1
        buffer_length = len(self.forward_buffer)
        self.forward_buffer[forward_slot % buffer_length] = rank.receive_hidden_states() if receives_input else None
        if receives_input:
            self.inputs[next_chunk_index].append(self.forward_buffer[forward_slot % buffer_length])
            self.forward_buffer[(forward_slot + 1) % buffer_length] = None
        self.input_gradient = self.backward(slot_number)
        if self.is_first(self.chunk_of_slot(slot_number, False)):
            self.input_gradient = None
        receives_gradient, gradient_chunk_index = self.next_received_chunk(slot_number, False)
        buffer_length = len(self.backward_buffer)
        self.backward_buffer[slot_number % buffer_length] = rank.receive_gradient() if receives_gradient else None
        if receives_gradient:
            self.gradients[gradient_chunk_index].append(self.backward_buffer[slot_number % buffer_length])
            self.backward_buffer[(slot_number + 1) % buffer_length] = None
        self.output = forward_output

    def _run_cool_down(self, slot_number: int) -> None:
        """Runs one slot of the cool-down: a backward pass without a forward pass."""
        receives_gradient, gradient_chunk_index = self.next_received_chunk(slot_number, False)
        receives_gradient = receives_gradient and slot_number != self.forward_pass_count - 1
        buffer_index = slot_number % len(self.backward_buffer)
        if self.prefetches_input and not self.last:
            self.backward_buffer[buffer_index] = self.rank_run.receive_gradient() if receives_gradient else None
        self.input_gradient = self.backward(slot_number)
        if not self.prefetches_input:
            self.output_gradient = self.rank_run.receive_gradient() if receives_gradient else None
        elif self.last:
            self.backward_buffer[buffer_index] = self.rank_run.receive_gradient() if receives_gradient else None
        if receives_gradient and not self.prefetches_input:
            self.gradients[gradient_chunk_index].append(self.output_gradient)
        elif receives_gradient:
            self.gradients[gradient_chunk_index].append(self.backward_buffer[buffer_index])
            self.backward_buffer[(slot_number + 1) % len(self.backward_buffer)] = None
