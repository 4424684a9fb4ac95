"""A training step of one rank of a pipeline, replayed: its chunks of layers in the order of the schedule.

The rank's chunks share one meter. What enters a chunk and the gradient of what leaves it come from other ranks, into
buffers that every micro-batch has for itself and that stay from the first step on (torch.distributed.pipelining,
stage.py: `_RecvInfo`). What leaves a chunk stays until the backward pass of its micro-batch has run (`fwd_cache`). The
tokens of all micro-batches are one tensor, of which each gets a part.

A method here that names a method of torch has its local variables, which hold tensors as those do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ...device_memory.training import Training, TrainingRun, replayed
from ...errors import InputError
from ...model import ModelSpec
from ...parallel.layout import Layout, Stage, stages
from ...parallel.rank_program import rank_program
from ...parallel.schedules import Action, effective_schedule, pipeline, torch_group
from ...simulator.autograd import backward, record
from ...simulator.event_log import Recorder
from ...simulator.lowering import ENTRY
from ...simulator.meter import Device, Meter, Place
from ...simulator.profiles.dtensor import Divided
from ...simulator.profiles.eager import Eager
from ...simulator.repeat_microbatches import PassPlayer, PassRecorder
from ...simulator.replay_result import ReplayResult
from ...simulator.tensor import DTYPES, INT64, Storage, Tensor, counted_as, empty
from ...workload.rows import TOKENS
from .messages import bucket_sizes


@dataclass
class Flight:
    """A micro-batch in flight in a chunk.

    entry: what entered it, if another rank sends that. out: what left it, or the loss.
    logits: on the last stage of a pipeline, what the loss is of, which the schedule still names.
    """

    entry: Tensor | None
    out: Tensor
    logits: Tensor | None = None


class Chunk(TrainingRun):
    """The layers of one stage of a rank.

    number: of the rank's chunks. passes: what records or plays its passes; None (default) if they are run.
    received, gradients: of every micro-batch, what another rank sends in the forward and in the backward pass.
    flights: what leaves the chunk in the forward pass, by micro-batch, until its backward pass has run.
    profiles: the kernels of whole products, and of divided ones.
    """

    profiles: tuple[type[Eager], type[Eager]] = Eager, Divided

    def __init__(
        self, spec: ModelSpec, training: Training, layout: Layout, rank: int, stage: Stage, meter: Meter | Recorder
    ) -> None:
        self.stage = stage
        self.profile = self.profiles[layout.tp > 1]
        super().__init__(spec, training, meter=meter, program=rank_program(spec, layout, rank, stage))
        self.lowering.below = stage.layers.start
        self.number = 0
        self.passes: PassRecorder | PassPlayer | None = None
        self.whole: Tensor | None = None
        self.received: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.flights: dict[int, Tensor] = {}

    def _check_choices(self) -> None:
        if self.stage.last:
            super()._check_choices()

    # --- alone ------------------------------------------------------------------------------------------------------

    def forward_of(self) -> Flight:
        """The forward pass of one micro-batch; on the last stage with its loss."""
        self.next_batch()
        self.meter.place = Place("forward")
        entry = self.lowering.enter(self.program)
        if self.stage.first and self.stage.last:
            return Flight(entry, self._passed(entry, self.forward))
        output = self.run_layers()
        return Flight(entry, self.compute_loss(output), output) if self.stage.last else Flight(entry, output)

    def backward_of(self, flight: Flight) -> None:
        """The backward pass of one micro-batch, from the gradient that another rank sends."""
        out, flight.out = flight.out, None  # type: ignore[assignment]
        if self.stage.last:
            self._pass_back([], partial(self.backward, out))
        else:
            with counted_as(self.meter, "communication"):
                seed = self.graph.new(out.shape, out.dtype, out.strides)
            self._backward_from(out, seed)
        if flight.entry is not None:
            flight.entry.grad = None  # sent

    def run_layers(self) -> Tensor:
        """The forward pass without the loss."""
        labels, self.labels = self.labels, None
        try:
            return self.forward()
        finally:
            self.labels = labels

    def _backward_from(self, out: Tensor, seed: Tensor) -> None:
        self.meter.place = Place("backward")
        self._take_workspace(2)
        backward(self.graph, out, seed, self.finish_backward)

    # --- in a schedule of torch -------------------------------------------------------------------------------------

    def take_batch(self, tokens: Tensor) -> None:
        """The tokens of all micro-batches of a step."""
        self.whole = tokens

    def _batch(self) -> None:
        if self.whole is None:
            super()._batch()
            return
        training, given = self.training, self.lowering.inputs
        given[TOKENS] = Tensor((training.batch, training.seq), INT64, self.whole.storage)
        self.lowering.take_frames(self.program)
        self.labels = None if self.spec.head.type != "lm" else self.lowering.t.flatten(given[TOKENS])

    def _initialize_stage(self) -> None:
        """Makes what is received into, of every micro-batch, before the first step."""
        for _ in range(self.training.microbatches):
            entry = self.lowering.enter(self.program)
            if entry is not None:
                self.received.append(entry)
            if not self.stage.last:
                assert self.program.result is not None
                with counted_as(self.meter, "communication"):
                    shape = self.lowering.shape(self.program.result)
                    self.gradients.append(empty(self.meter, shape, self.lowering.dtype))

    def forward_one_chunk(self, i: int) -> Tensor:
        """The forward pass of micro-batch `i`. Returns its output, which is kept."""
        self.next_batch()
        self.meter.place = Place("forward")
        if self.received:
            self.lowering.inputs[ENTRY] = self.received[i]
        output = self._passed(self.received[i] if self.received else None, self.run_layers)
        self.flights[i] = output
        return output

    def forward_and_loss(self, i: int) -> Tensor | None:
        """The forward pass of micro-batch `i`. Returns its loss, on the last stage."""
        output = self.forward_one_chunk(i)
        return self.compute_loss(output) if self.stage.last else None

    def perform_reduce_grad(self) -> None:
        """What follows the last backward pass of a step: nothing without shards."""

    def compute_loss(self, output: Tensor) -> Tensor:
        """The loss of the micro-batch that has just run."""
        self.meter.place = Place("forward", path="loss")
        run = partial(self._losses, output)
        return run() if self.passes is None else self.passes.loss(self.number, output, run)

    def _losses(self, output: Tensor) -> Tensor:
        """Of a model without a language-model head, one number whose gradient is of the size of the output."""
        if self.labels is not None:
            return self.lowering.losses(output, self.labels)
        new = self.graph.new
        loss = new((), output.dtype)
        return record(self.graph, "loss", [output], loss, lambda g, _: [new(output.shape, output.dtype)])

    def _passed(self, entered: Tensor | None, run: Callable[[], Tensor]) -> Tensor:
        """A forward pass, which is run unless it is recorded or played."""
        return run() if self.passes is None else self.passes.forward(self.number, entered, run)

    def _pass_back(self, entered: Sequence[Tensor], run: Callable[[], None]) -> None:
        """A backward pass, after which what entered and the parameters have gradients."""
        if self.passes is None:
            run()
        else:
            self.passes.backward(self.number, [*entered, *self.parameters], run)

    def backward_one_chunk(self, i: int, loss: Tensor | None) -> Tensor | None:
        """The backward pass of micro-batch `i`. Returns the gradient of what entered it, which is sent."""
        stage_output = self.flights.pop(i)
        entered = self.received[i : i + 1]
        if loss is not None:
            self._pass_back(entered, partial(self.backward, loss))
            stage_output.node = None  # `detach_`
        else:
            self._pass_back(entered, partial(self._backward_from, stage_output, self.gradients[i]))
        if not self.received:
            return None
        grads_input, self.received[i].grad = self.received[i].grad, None
        return grads_input


MOST_MICROBATCHES = 1024
"""The most micro-batches of a pipeline that are replayed: a rank has buffers of each of them."""


class RankRun:
    """One rank's training steps.

    layout: the layout. rank: which of its ranks.
    Raises `InputError` for what torch itself does not divide, and for more micro-batches than are replayed.
    """

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        layout: Layout,
        rank: int,
        meter: Meter | Recorder,
        workspace: int = 0,
    ) -> None:
        self.check(layout)
        if layout.pp > 1 and training.microbatches > MOST_MICROBATCHES:
            raise InputError(
                f"--num-microbatches {training.microbatches}: a pipeline of torch has buffers of each micro-batch, and "
                f"all are replayed; expected at most {MOST_MICROBATCHES:,}"
            )
        coordinates = layout.coordinates(rank)
        self.layout, self.training, self.meter = layout, training, meter
        layers = sum(stack.num_hidden_layers for _, stack in spec.stacks())
        rank_stages = [stage for stage in stages(layout, layers) if stage.rank == coordinates.pp]
        self.chunks = [self.chunk(spec, rank, stage) for stage in rank_stages]
        for number, chunk in enumerate(self.chunks):
            chunk.number, chunk.workspace, chunk.workspaces = number, workspace, self.chunks[0].workspaces
        group = torch_group(layout.pp, training.microbatches) if layout.vpp > 1 else None
        self.order: Sequence[Action] = pipeline(layout, training.microbatches, group).orders[coordinates.pp]
        self.buckets: list[Storage] = []

    def check(self, layout: Layout) -> None:
        """Raises `InputError` for a layout that is not modelled."""
        check_torch(layout)

    def chunk(self, spec: ModelSpec, rank: int, stage: Stage) -> Chunk:
        """The layers of one stage."""
        return Chunk(spec, self.training, self.layout, rank, stage, self.meter)

    def set_up(self) -> None:
        """Makes the parameters, and the buckets in which gradients are summed over replicas."""
        for chunk in self.chunks:
            chunk.set_up()
        if self.layout.dp > 1:
            with counted_as(self.meter, "communication"):
                self._make_buckets()

    def _make_buckets(self) -> None:
        """Of gradients in the order in which the backward pass completes them (c10d `Reducer`)."""
        width = DTYPES[self.training.dtype].bytes
        weights = (weight for chunk in reversed(self.chunks) for weight in reversed(chunk.parameters))
        self.buckets = [Storage(self.meter, size) for size in bucket_sizes(weight.count * width for weight in weights)]

    def step(self) -> None:
        """Runs one step in the order of the schedule."""
        self.passes()
        self.update()
        self.zero_grad()

    def passes(self) -> None:
        """The forward and backward passes of all micro-batches."""
        self.begin_step()
        if self.layout.pp > 1 and effective_schedule(self.layout) == "1f1b":
            self._one_forward_one_backward(self.chunks[0])
        else:
            self._in_order()
        self.end_passes()

    def begin_step(self) -> None:
        """What comes before the passes of a step."""
        passes = self.chunks[0].passes
        if passes is not None:
            passes.begin_step()
        if self.layout.pp > 1:
            self._take_batch()

    def end_passes(self) -> None:
        """What follows the passes of a step: the parts of the tokens are named in the schedule alone."""
        if self.layout.pp > 1:
            for chunk in self.chunks:
                chunk.labels = None
                del chunk.lowering.inputs[TOKENS]

    def _take_batch(self) -> None:
        """The tokens of a step, and, in the first step, the buffers of its micro-batches."""
        self.meter.place = Place("forward")
        with counted_as(self.meter, "activations"):
            tokens = empty(self.meter, (self.training.microbatches * self.training.batch, self.training.seq), INT64)
        first = self.chunks[0].whole is None
        for chunk in self.chunks:
            chunk.take_batch(tokens)
            if first:
                chunk._initialize_stage()

    def _in_order(self) -> None:
        flights: dict[tuple[int, int], Flight] = {}
        losses: dict[tuple[int, int], Tensor] = {}
        for i, (kind, index, batch, *_) in enumerate(self.order):
            chunk, key = self.chunks[index], (index, batch)
            if self.layout.pp == 1:
                if kind == "F":
                    flights[key] = chunk.forward_of()
                else:
                    chunk.backward_of(flights.pop(key))
                continue
            self.before_action(i)
            if kind == "F":
                loss = chunk.forward_and_loss(batch)
                if loss is not None:
                    losses[key] = loss
                del loss
            else:
                chunk.backward_one_chunk(batch, losses.get(key))
                if batch == self.training.microbatches - 1:
                    chunk.perform_reduce_grad()

    def before_action(self, i: int) -> None:
        """What comes before action `i` of the order: nothing without shards."""

    def _one_forward_one_backward(self, chunk: Chunk) -> None:
        """`Schedule1F1B._step_microbatches`. What is sent is named until what is sent next."""
        last, count = chunk.stage.last, self.training.microbatches
        warmup_chunks = min(count, self.layout.pp - chunk.stage.rank)
        fwd_mb_index = bwd_mb_index = 0
        internal_losses: list[Tensor] = []
        for _ in range(warmup_chunks):
            output = chunk.forward_one_chunk(fwd_mb_index)
            _fwd_sends = None if last else output.detached()
            if fwd_mb_index != warmup_chunks - 1:
                _send_work = _fwd_sends
            if last:
                internal_losses.append(chunk.compute_loss(output))
            fwd_mb_index += 1
        while True:
            loss = internal_losses[bwd_mb_index] if last else None
            _bwd_sends = chunk.backward_one_chunk(bwd_mb_index, loss)
            bwd_mb_index += 1
            if fwd_mb_index == count:
                break
            output = chunk.forward_one_chunk(fwd_mb_index)
            if last:
                internal_losses.append(chunk.compute_loss(output))
            _fwd_sends = None if last else output.detached()
            fwd_mb_index += 1
        _send_work = _bwd_sends
        while bwd_mb_index < count:
            loss = internal_losses[bwd_mb_index] if last else None
            _bwd_sends = chunk.backward_one_chunk(bwd_mb_index, loss)
            _send_work = _bwd_sends
            bwd_mb_index += 1
        chunk.perform_reduce_grad()

    def update(self) -> None:
        """The optimizer's step over the parameters of all chunks."""
        first = self.chunks[0]
        chunk_parameters = first.trained, first.parameters
        first.trained = [parameter for chunk in self.chunks for parameter in chunk.trained]
        first.parameters = [weight for chunk in self.chunks for weight in chunk.parameters]
        first.update()
        first.trained, first.parameters = chunk_parameters

    def zero_grad(self) -> None:
        """Frees the gradients, or keeps them as zeros."""
        for chunk in self.chunks:
            chunk.zero_grad()


def check_torch(layout: Layout) -> None:
    """Raises `InputError` for what plain torch does not divide, and FSDP2, Megatron or DeepSpeed do; and for schedules
    with parts of backward passes, or in two directions.
    """
    if layout.schedule not in ("1f1b", "interleaved"):
        raise InputError(
            f"--schedule {layout.schedule}: in torch's own kernels it is not modelled; expected 1f1b or interleaved"
        )
    if layout.zero:
        raise InputError(f"--zero {layout.zero}: torch itself divides nothing; expected --framework fsdp2 or deepspeed")
    for name, size in (("cp", layout.cp), ("ep", layout.ep)):
        if size > 1:
            raise InputError(f"--{name} {size}: not in torch's own kernels; expected --framework megatron")


def replay_rank(
    spec: ModelSpec, training: Training, layout: Layout, rank: int, device: Device | None = None, workspace: int = 0
) -> ReplayResult:
    """Replays set-up and two steps of one rank. device: as of `replay`."""
    meter = Meter(device)
    return replayed(RankRun(spec, training, layout, rank, meter, workspace), meter)
