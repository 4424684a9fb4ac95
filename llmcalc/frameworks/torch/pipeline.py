"""Replays a training step of one pipeline rank: its chunks of layers in the schedule's order.

The rank's chunks share one meter. What enters a chunk and the gradient of what leaves it come from other ranks, into
buffers that every micro-batch has for itself and that stay from the first step on (torch.distributed.pipelining,
stage.py: `_RecvInfo`). What leaves a chunk stays until the backward pass of its micro-batch has run (`fwd_cache`). The
tokens of all micro-batches are one tensor, of which each gets a part.

A method here that names a method of torch has its local variables, which hold tensors as those do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from ...device_memory.training import TrainingConfig, TrainingRun
from ...errors import InputError
from ...frozen import frozen
from ...model import ModelSpec
from ...parallel.layout import Layout, Stage, stages
from ...parallel.rank_program import rank_program
from ...parallel.schedules import PassAction, effective_schedule, pipeline, torch_group_size
from ...simulator.autograd import backward, record
from ...simulator.event_log import Event, EventRecorder, RecordedEvents
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.layer_stacks import LayerStack, program_stacks
from ...simulator.lowering import STAGE_INPUT_KEY
from ...simulator.meter import AllocationPlace, Meter
from ...simulator.profiles.dtensor import DTensorKernels
from ...simulator.profiles.eager import EagerKernels
from ...simulator.record_microbatches import PassRecorder
from ...simulator.repeat_microbatches import PassReplayer
from ...simulator.replay_result import STEP_PHASES
from ...simulator.tensor import DTYPES, INT64, Storage, Tensor, count_storages_as, empty
from ...workload.rows import TOKENS
from .messages import bucket_sizes


@dataclass
class MicroBatchInFlight:
    """A micro-batch between forward and backward pass through a pipeline chunk.

    received_input: the input from another rank. pass_output: the output, or the loss.
    logits: on the last stage, the logits that the schedule still refers to.
    """

    received_input: Tensor | None
    pass_output: Tensor
    logits: Tensor | None = None


@frozen
class RankSetup:
    """The model, training configuration and layout of one rank.

    layout: the parallel layout. rank: index of the rank. workspace_bytes: bytes of a workspace of matrix products.
    """

    spec: ModelSpec
    training_config: TrainingConfig
    layout: Layout
    rank: int
    workspace_bytes: int = 0


class ModelChunk(TrainingRun):
    """The layers of one pipeline stage on a rank.

    chunk_index: index of the chunk on its rank. pass_recorder: recorder or player of its passes; None (default) if they
        run.
    receive_buffers, gradients: per micro-batch, the tensors received from other ranks in the forward and backward pass.
    outputs_in_flight: per micro-batch, the chunk's output until its backward pass has run.
    profiles: the kernels without and with tensor parallelism.
    """

    profiles: tuple[type[EagerKernels], type[EagerKernels]] = EagerKernels, DTensorKernels

    def __init__(self, rank_setup: RankSetup, stage: Stage, memory_meter: Meter | EventRecorder) -> None:
        self.stage = stage
        self.stage_count = rank_setup.layout.pp
        self.profile = self.profiles[rank_setup.layout.tp > 1]
        rank_flow = rank_program(rank_setup.spec, rank_setup.layout, rank_setup.rank, stage)
        super().__init__(rank_setup.spec, rank_setup.training_config, memory_meter=memory_meter, program=rank_flow)
        self.lowering.first_layer_index = stage.layers.start
        self.chunk_index = 0
        self.pass_recorder: PassRecorder | PassReplayer | None = None
        self.step_tokens: Tensor | None = None
        self.receive_buffers: list[Tensor] = []
        self.gradients: list[Tensor] = []
        self.outputs_in_flight: dict[int, Tensor] = {}

    def _check_choices(self) -> None:
        if self.stage.has_head:
            super()._check_choices()

    # --- alone ------------------------------------------------------------------------------------------------------

    def forward_micro_batch(self) -> MicroBatchInFlight:
        """Runs the forward pass of a micro-batch, with the loss on the last stage."""
        self.replace_batch()
        self.meter.place = AllocationPlace("forward")
        stage_input = self.lowering.create_stage_input(self.program)
        if self.stage.has_embedding and self.stage.has_head:
            return MicroBatchInFlight(stage_input, self._run_forward(stage_input, self.forward))
        output_tensor = self.run_layers()
        if self.stage.has_head:
            return MicroBatchInFlight(stage_input, self.compute_loss(output_tensor), output_tensor)
        return MicroBatchInFlight(stage_input, output_tensor)

    def backward_micro_batch(self, micro_batch_in_flight: MicroBatchInFlight) -> None:
        """Runs the backward pass of a micro-batch, from the gradient received from another rank."""
        output_tensor = micro_batch_in_flight.pass_output
        del micro_batch_in_flight.pass_output
        if self.stage.has_head:
            self._run_backward([], partial(self.backward, output_tensor))
        else:
            with count_storages_as(self.meter, "communication"):
                output_gradient = self.graph.new_tensor(output_tensor.shape, output_tensor.dtype, output_tensor.strides)
            self._run_backward_from(output_tensor, output_gradient)
        if micro_batch_in_flight.received_input is not None:
            micro_batch_in_flight.received_input.grad = None  # sent

    def run_layers(self) -> Tensor:
        """Runs the forward pass of the chunk's layers, without the loss."""
        token_labels, self.labels = self.labels, None
        try:
            return self.forward()
        finally:
            self.labels = token_labels

    def _run_backward_from(self, output_tensor: Tensor, output_gradient: Tensor) -> None:
        """Runs the backward pass from an output tensor and the output's gradient.

        Raises `InputError` for a stage whose output is its input, because no pass runs its layers.
        """
        if output_tensor.node is None:
            layers = self.stage.layers
            raise InputError(
                f"--pp {self.stage_count}: no pass runs a layer of the stage of layers {layers.start} to "
                f"{layers.stop - 1}; expected fewer stages"
            )
        self.meter.place = AllocationPlace("backward")
        self._allocate_workspaces(2)
        backward(self.graph, output_tensor, output_gradient, self.finish_communication)

    # --- in a schedule of torch -------------------------------------------------------------------------------------

    def store_batch_tokens(self, token_ids: Tensor) -> None:
        """Stores the tokens of all micro-batches of a step."""
        self.step_tokens = token_ids

    def _allocate_batch(self) -> None:
        """Assigns views of the step's token ids to the chunk's inputs."""
        if self.step_tokens is None:
            super()._allocate_batch()
            return
        training_config, program_inputs = self.training_config, self.lowering.inputs
        program_inputs[TOKENS] = Tensor((training_config.batch, training_config.seq), INT64, self.step_tokens.storage)
        self.lowering.create_input_frames(self.program)
        self.labels = None if self.spec.head.type != "lm" else self.lowering.aten.flatten(program_inputs[TOKENS])

    def _initialize_stage(self) -> None:
        """Allocates the receive buffers of every micro-batch, before the first step."""
        for _ in range(self.training_config.microbatches):
            receive_buffer = self.lowering.create_stage_input(self.program)
            if receive_buffer is not None:
                self.receive_buffers.append(receive_buffer)
            if not self.stage.has_head:
                assert self.program.result is not None
                with count_storages_as(self.meter, "communication"):
                    output_shape = self.lowering.shape(self.program.result)
                    self.gradients.append(empty(self.meter, output_shape, self.lowering.dtype))

    def forward_one_chunk(self, i: int) -> Tensor:
        """Runs the forward pass of micro-batch `i`, and returns and stores the output."""
        self.replace_batch()
        self.meter.place = AllocationPlace("forward")
        if self.receive_buffers:
            self.lowering.inputs[STAGE_INPUT_KEY] = self.receive_buffers[i]
        output_tensor = self._run_forward(self.receive_buffers[i] if self.receive_buffers else None, self.run_layers)
        self.outputs_in_flight[i] = output_tensor
        return output_tensor

    def forward_and_loss(self, i: int) -> Tensor | None:
        """Runs the forward pass of micro-batch `i`, and returns the loss on the last stage, otherwise None."""
        output_tensor = self.forward_one_chunk(i)
        return self.compute_loss(output_tensor) if self.stage.has_head else None

    def perform_reduce_grad(self) -> None:
        """Does nothing after a step's last backward pass; a chunk with sharding overrides this hook."""

    def compute_loss(self, output_tensor: Tensor) -> Tensor:
        """Computes the loss of the current micro-batch."""
        self.meter.place = AllocationPlace("forward", path="loss")
        compute_losses = partial(self._compute_losses, output_tensor)
        return (
            compute_losses()
            if self.pass_recorder is None
            else self.pass_recorder.loss(self.chunk_index, output_tensor, compute_losses)
        )

    def _compute_losses(self, output: Tensor) -> Tensor:
        """Computes the loss, or without a language-model head a scalar whose gradient has the output's shape."""
        if self.labels is not None:
            return self.lowering.losses(self.lowering.logits_for_loss(output), self.labels)
        new_tensor = self.graph.new_tensor
        loss = new_tensor((), output.dtype)
        return record(self.graph, "loss", [output], loss, lambda gradient, _: [new_tensor(output.shape, output.dtype)])

    def _run_forward(self, stage_input: Tensor | None, run_layers: Callable[[], Tensor]) -> Tensor:
        """Runs, records or replays a forward pass of the chunk."""
        return (
            run_layers()
            if self.pass_recorder is None
            else self.pass_recorder.forward(self.chunk_index, stage_input, run_layers)
        )

    def _run_backward(self, stage_inputs: Sequence[Tensor], run_layers: Callable[[], None]) -> None:
        """Runs, records or replays a backward pass of the chunk."""
        if self.pass_recorder is None:
            run_layers()
        else:
            self.pass_recorder.backward(self.chunk_index, [*stage_inputs, *self.parameters], run_layers)

    def backward_one_chunk(self, i: int, loss: Tensor | None) -> Tensor | None:
        """Runs the backward pass of micro-batch `i`. Returns the gradient of the stage's input, which is sent."""
        stage_output = self.outputs_in_flight.pop(i)
        stage_inputs = self.receive_buffers[i : i + 1]
        if loss is not None:
            self._run_backward(stage_inputs, partial(self.backward, loss))
            stage_output.node = None  # `detach_`
        else:
            self._run_backward(stage_inputs, partial(self._run_backward_from, stage_output, self.gradients[i]))
        if not self.receive_buffers:
            return None
        input_gradient, self.receive_buffers[i].grad = self.receive_buffers[i].grad, None
        return input_gradient


MAX_MICROBATCHES = 1024
"""Most micro-batches of a step that are replayed: a rank has buffers, or at least a loss, for each of them."""

MAX_FORWARD_PASSES = 1536
"""Most forward passes of a rank that are replayed: each micro-batch has one per chunk of layers (`--vpp`)."""


class RankRun:
    """Runs the training steps of one rank of a pipeline in plain PyTorch.

    Raises `InputError` for layouts that torch does not support, and for more micro-batches than are replayed.
    """

    chunk_class: type[ModelChunk] = ModelChunk

    def __init__(self, rank_setup: RankSetup, memory_meter: Meter | EventRecorder) -> None:
        layout, training_config = rank_setup.layout, rank_setup.training_config
        self.check(layout)
        microbatch_limit = min(MAX_MICROBATCHES, MAX_FORWARD_PASSES // layout.vpp)
        if training_config.microbatches > microbatch_limit:
            run_kind, buffer_kind = ("a pipeline", "buffers") if layout.pp > 1 else ("a step", "the loss")
            raise InputError(
                f"--num-microbatches {training_config.microbatches}: {run_kind} of torch has {buffer_kind} of each "
                f"micro-batch, and all are replayed; expected at most {microbatch_limit:,}"
            )
        coordinates = layout.coordinates(rank_setup.rank)
        self.rank_setup: RankSetup = rank_setup
        self.layout: Layout = layout
        self.training_config: TrainingConfig = training_config
        self.meter: Meter | EventRecorder = memory_meter
        layer_count = rank_setup.spec.layer_count
        rank_stages = [stage for stage in stages(layout, layer_count) if stage.pipeline_rank == coordinates.pp]
        self.chunks: list[ModelChunk] = [self.chunk_class(rank_setup, stage, memory_meter) for stage in rank_stages]
        for chunk_index, model_chunk in enumerate(self.chunks):
            model_chunk.chunk_index, model_chunk.workspace_bytes = chunk_index, rank_setup.workspace_bytes
            model_chunk.workspaces = self.chunks[0].workspaces
        group_size = torch_group_size(layout.pp, training_config.microbatches) if layout.vpp > 1 else None
        self.schedule_actions: Sequence[PassAction] = pipeline(
            layout, training_config.microbatches, group_size
        ).actions_by_rank[coordinates.pp]
        self.buckets: list[Storage] = []
        self.has_buckets: bool = layout.dp > 1

    def check(self, layout: Layout) -> None:
        """Raises `InputError` for a layout that is not modelled."""
        check_torch(layout)

    def set_up(self) -> None:
        """Creates the parameters, and the buckets that all-reduce gradients over replicas."""
        for model_chunk in self.chunks:
            model_chunk.set_up()
        if self.has_buckets:
            with count_storages_as(self.meter, "communication"):
                self._make_buckets()

    def _make_buckets(self) -> None:
        """Allocates buckets in the order in which the backward pass completes gradients (c10d `Reducer`)."""
        element_bytes = DTYPES[self.training_config.dtype].bytes
        ordered_weights = (weight for chunk in reversed(self.chunks) for weight in reversed(chunk.parameters))
        self.buckets = [
            Storage(self.meter, bucket_bytes)
            for bucket_bytes in bucket_sizes(weight.numel * element_bytes for weight in ordered_weights)
        ]

    def step(self) -> None:
        """Runs one training step in the order of the pipeline schedule."""
        self.run_passes()
        self.update()
        self.zero_grad()

    def run_passes(self) -> None:
        """Runs the forward and backward passes of all micro-batches of a step."""
        self.begin_step()
        if self.layout.pp > 1 and effective_schedule(self.layout) == "1f1b":
            self._run_1f1b(self.chunks[0])
        else:
            self._run_schedule_order()
        self.end_passes()

    def begin_step(self) -> None:
        """Increments the number of training steps, and allocates the tokens of the step."""
        pass_recorder = self.chunks[0].pass_recorder
        if pass_recorder is not None:
            pass_recorder.begin_step()
        if self.layout.pp > 1:
            self._allocate_step_tokens()

    def end_passes(self) -> None:
        """Drops the references to a step's input tokens."""
        if self.layout.pp > 1:
            for model_chunk in self.chunks:
                model_chunk.labels = None
                del model_chunk.lowering.inputs[TOKENS]

    def _allocate_step_tokens(self) -> None:
        """Allocates the tokens of a step, and in the first step the receive buffers."""
        self.meter.place = AllocationPlace("forward")
        with count_storages_as(self.meter, "activations"):
            token_ids = empty(
                self.meter,
                (self.training_config.microbatches * self.training_config.batch, self.training_config.seq),
                INT64,
            )
        is_first_step = self.chunks[0].step_tokens is None
        for model_chunk in self.chunks:
            model_chunk.store_batch_tokens(token_ids)
            if is_first_step:
                model_chunk._initialize_stage()

    def _run_schedule_order(self) -> None:
        """Runs the passes in the order of an interleaved schedule, or of a single stage."""
        in_flight_by_pass: dict[tuple[int, int], MicroBatchInFlight] = {}
        losses_by_pass: dict[tuple[int, int], Tensor] = {}
        for action_number, (pass_kind, chunk_index, microbatch, *_) in enumerate(self.schedule_actions):
            model_chunk, pass_key = self.chunks[chunk_index], (chunk_index, microbatch)
            if self.layout.pp == 1:
                if pass_kind == "F":
                    in_flight_by_pass[pass_key] = model_chunk.forward_micro_batch()
                else:
                    model_chunk.backward_micro_batch(in_flight_by_pass.pop(pass_key))
                continue
            self.before_action(action_number)
            if pass_kind == "F":
                loss = model_chunk.forward_and_loss(microbatch)
                if loss is not None:
                    losses_by_pass[pass_key] = loss
                del loss
            else:
                model_chunk.backward_one_chunk(microbatch, losses_by_pass.get(pass_key))
                if microbatch == self.training_config.microbatches - 1:
                    model_chunk.perform_reduce_grad()

    def before_action(self, i: int) -> None:
        """Does nothing before action `i` of the schedule; a run with sharding overrides this hook."""

    def _run_1f1b(self, model_chunk: ModelChunk) -> None:
        """Runs `Schedule1F1B._step_microbatches`, where each sent tensor stays referenced until the next send."""
        is_last_stage, microbatch_count = model_chunk.stage.has_head, self.training_config.microbatches
        warmup_microbatch_count = min(microbatch_count, self.layout.pp - model_chunk.stage.pipeline_rank)
        forward_index = backward_index = 0
        internal_losses: list[Tensor] = []
        for _ in range(warmup_microbatch_count):
            output_tensor = model_chunk.forward_one_chunk(forward_index)
            _fwd_sends = None if is_last_stage else output_tensor.detached()
            if forward_index != warmup_microbatch_count - 1:
                _send_work = _fwd_sends
            if is_last_stage:
                internal_losses.append(model_chunk.compute_loss(output_tensor))
            forward_index += 1
        while True:
            loss = internal_losses[backward_index] if is_last_stage else None
            _bwd_sends = model_chunk.backward_one_chunk(backward_index, loss)
            backward_index += 1
            if forward_index == microbatch_count:
                break
            output_tensor = model_chunk.forward_one_chunk(forward_index)
            if is_last_stage:
                internal_losses.append(model_chunk.compute_loss(output_tensor))
            _fwd_sends = None if is_last_stage else output_tensor.detached()
            forward_index += 1
        _send_work = _bwd_sends
        while backward_index < microbatch_count:
            loss = internal_losses[backward_index] if is_last_stage else None
            _bwd_sends = model_chunk.backward_one_chunk(backward_index, loss)
            _send_work = _bwd_sends
            backward_index += 1
        model_chunk.perform_reduce_grad()

    def update(self) -> None:
        """Runs one optimizer step over the parameters of all chunks."""
        first_chunk = self.chunks[0]
        chunk_parameters = first_chunk.updated_parameters, first_chunk.parameters
        first_chunk.updated_parameters = [parameter for chunk in self.chunks for parameter in chunk.updated_parameters]
        first_chunk.parameters = [weight for chunk in self.chunks for weight in chunk.parameters]
        first_chunk.update()
        first_chunk.updated_parameters, first_chunk.parameters = chunk_parameters

    def zero_grad(self) -> None:
        """Frees the gradients of all chunks, or keeps them as zeros."""
        for model_chunk in self.chunks:
            model_chunk.zero_grad()


def shorten_layers(
    model_chunks: Iterable[ModelChunk], layer_period: int, shortens_stacks: bool = True
) -> tuple[list[LayerStack], list[int]]:
    """Makes chunks run few repeats of long layer stacks; returns all stacks and the shortened ones.

    layer_period: layers between two recomputed ones. shortens_stacks: false to run all layers; default true.
    """
    stacks: list[LayerStack] = []
    shortened_stacks: list[int] = []
    for model_chunk in model_chunks:
        lowering = model_chunk.lowering
        chunk_stacks = program_stacks(model_chunk.program.root, layer_period, lowering.first_layer_index)
        lowering.run_repeats_by_stack = {
            i: layer_stack.repeats_of_layer_types(RECORDED_REPEATS)
            for i, layer_stack in enumerate(chunk_stacks)
            if shortens_stacks and layer_stack.repeat_count > RECORDED_REPEATS
        }
        shortened_stacks += [len(stacks) + i for i in lowering.run_repeats_by_stack]
        stacks += chunk_stacks
    return stacks, shortened_stacks


def record_two_steps(rank_run: RankRun, memory_meter: EventRecorder) -> RecordedEvents:
    """Records the set-up and two training steps. Passes, update and `zero_grad` are separate phases of a step."""
    rank_run.set_up()
    set_up_events = memory_meter.take_events()
    step_events: list[list[Sequence[Event]]] = []
    for _ in range(2):
        rank_run.run_passes()
        pass_events = memory_meter.take_events()
        rank_run.update()
        update_events = memory_meter.take_events()
        rank_run.zero_grad()
        step_events.append([pass_events, update_events, memory_meter.take_events()])
    first_step, second_step = step_events
    return RecordedEvents(set_up_events, first_step, second_step, STEP_PHASES)


def check_torch(layout: Layout) -> None:
    """Raises `InputError` for layouts that plain PyTorch does not support.

    These are sharded states, context and expert parallelism, and schedules other than 1F1B and interleaved 1F1B.
    """
    if layout.schedule not in ("1f1b", "interleaved"):
        raise InputError(
            f"--schedule {layout.schedule}: in torch's own kernels it is not modelled; expected 1f1b or interleaved"
        )
    if layout.zero:
        other_frameworks = "deepspeed or megatron" if layout.zero == 1 else "fsdp2 or deepspeed"
        raise InputError(f"--zero {layout.zero}: torch itself divides nothing; expected --framework {other_frameworks}")
    for size_name, group_size in (("cp", layout.cp), ("ep", layout.ep)):
        if group_size > 1:
            raise InputError(f"--{size_name} {group_size}: not in torch's own kernels; expected --framework megatron")
