"""A training step of one rank of a pipeline, replayed: its chunks of layers in the order of the schedule.

The rank's chunks share one meter. What enters a chunk and the gradient of what leaves it come from other ranks; both
stay until the backward pass of their micro-batch has run, and so does what leaves it (torch.distributed.pipelining,
stage.py: `fwd_cache` names the outputs and the inputs of every micro-batch in flight).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..kernels.autograd import backward
from ..kernels.meter import Device, Meter, Place
from ..kernels.tensor import DTYPES, Storage, Tensor, counted_as
from ..layouts.rank import rank_program
from ..layouts.schedules import Action, pipeline
from ..model import ModelSpec
from ..run.layout import Layout, Stage, stages
from .training import Replayed, Training, TrainingRun

BUCKETS = 2**20, 25 * 2**20
"""Bytes of gradients in the first bucket of DDP, and in the others (torch/nn/parallel/distributed.py)."""


@dataclass
class Flight:
    """A micro-batch in flight in a chunk. entry: what entered it, if another rank sends that. out: what left it."""

    entry: Tensor | None
    out: Tensor


class Chunk(TrainingRun):
    """The layers of one stage of a rank."""

    def __init__(self, spec: ModelSpec, how: Training, layout: Layout, rank: int, stage: Stage, meter: Meter) -> None:
        self.stage = stage
        super().__init__(spec, how, meter=meter, program=rank_program(spec, layout, rank, stage))
        self.lowering.below = stage.layers.start

    def _check_choices(self) -> None:
        if self.stage.last:
            super()._check_choices()

    def forward_of(self) -> Flight:
        """The forward pass of one micro-batch; on the last stage with its loss."""
        self.next_batch()
        self.meter.place = Place("forward")
        entry = self.lowering.enter(self.program)
        if self.stage.last:
            return Flight(entry, self.forward())
        labels, self.labels = self.labels, None
        try:
            return Flight(entry, self.forward())
        finally:
            self.labels = labels

    def backward_of(self, flight: Flight) -> None:
        """The backward pass of one micro-batch, from the gradient that another rank sends."""
        out, flight.out = flight.out, None  # type: ignore[assignment]
        if self.stage.last:
            self.backward(out)
        else:
            self.meter.place = Place("backward")
            self._take_workspace(2)
            with counted_as(self.meter, "communication"):
                seed = self.graph.new(out.shape, out.dtype, out.strides)
            backward(self.graph, out, seed)
        if flight.entry is not None:
            flight.entry.grad = None  # sent


class RankRun:
    """One rank's training steps.

    layout: the layout. rank: which of its ranks.
    Raises `InputError` for what torch itself does not divide.
    """

    def __init__(self, spec: ModelSpec, how: Training, layout: Layout, rank: int, meter: Meter, workspace: int = 0):
        check_torch(layout)
        at = layout.at(rank)
        self.layout, self.how, self.meter = layout, how, meter
        layers = sum(stack.num_hidden_layers for _, stack in spec.stacks())
        own = [stage for stage in stages(layout, layers) if stage.rank == at.pp]
        self.chunks = [Chunk(spec, how, layout, rank, stage, meter) for stage in own]
        for chunk in self.chunks:
            chunk.workspace, chunk.workspaces = workspace, self.chunks[0].workspaces
        self.order: Sequence[Action] = pipeline(layout, how.microbatches).orders[at.pp]
        self.buckets: list[Storage] = []

    def set_up(self) -> None:
        """Makes the parameters, and the buckets in which gradients are summed over replicas."""
        for chunk in self.chunks:
            chunk.set_up()
        if self.layout.dp > 1:
            with counted_as(self.meter, "communication"):
                self._make_buckets()

    def _make_buckets(self) -> None:
        """Of gradients in the order in which the backward pass completes them (c10d `Reducer`)."""
        width, size, filled = DTYPES[self.how.dtype].bytes, 0, 0
        for chunk in reversed(self.chunks):
            for weight in reversed(chunk.parameters):
                size += weight.count * width
                if size >= BUCKETS[min(filled, 1)]:
                    self.buckets.append(Storage(self.meter, size))
                    size, filled = 0, filled + 1
        if size:
            self.buckets.append(Storage(self.meter, size))

    def step(self) -> None:
        """Runs one step in the order of the schedule."""
        self.passes()
        self.update()
        self.zero_grad()

    def passes(self) -> None:
        """The forward and backward passes of all micro-batches."""
        flights: dict[tuple[int, int], Flight] = {}
        for kind, index, batch, *_ in self.order:
            chunk = self.chunks[index]
            if kind == "F":
                flights[index, batch] = chunk.forward_of()
            elif kind == "B":
                chunk.backward_of(flights.pop((index, batch)))
            else:
                raise InputError("--schedule: torch's kernels run a whole backward pass; expected 1f1b or interleaved")

    def update(self) -> None:
        """The optimizer's step over the parameters of all chunks."""
        first = self.chunks[0]
        own = first.trained, first.parameters
        first.trained = [one for chunk in self.chunks for one in chunk.trained]
        first.parameters = [weight for chunk in self.chunks for weight in chunk.parameters]
        first.update()
        first.trained, first.parameters = own

    def zero_grad(self) -> None:
        """Frees the gradients, or keeps them as zeros."""
        for chunk in self.chunks:
            chunk.zero_grad()


def check_torch(layout: Layout) -> None:
    """Raises `InputError` for what plain torch does not divide: FSDP2, Megatron or DeepSpeed do."""
    if layout.zero:
        raise InputError(f"--zero {layout.zero}: torch itself divides nothing; expected --framework fsdp2 or deepspeed")
    for name, size in (("cp", layout.cp), ("ep", layout.ep)):
        if size > 1:
            raise InputError(f"--{name} {size}: not in torch's own kernels; expected --framework megatron")
    if layout.sequence_parallel:
        raise InputError("--sequence-parallel: not in torch's own kernels; expected --framework megatron")


def replay_rank(
    spec: ModelSpec, how: Training, layout: Layout, rank: int, device: Device | None = None, workspace: int = 0
) -> Replayed:
    """Replays set-up and two steps of one rank. device: as of `replay`."""
    meter = Meter(device)
    run = RankRun(spec, how, layout, rank, meter, workspace)
    meter.place = Place("set-up")
    run.set_up()
    found = Replayed(set_up=meter.now)
    run.step()
    first, meter.peaks = meter.peaks, {}
    meter.place = Place()
    run.step()
    meter.place = Place("after")
    found.take_peaks(first, meter.peaks)
    found.after = meter.now
    found.read(device)
    return found
