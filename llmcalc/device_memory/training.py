"""Replays training on one device, from set-up to the second step; every tensor is allocated on a simulated allocator.

The second step is the steady state: the optimizer's states exist, and the allocator has the free blocks that the first
step left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Protocol

from ..costs.trained_tensors import layer_paths, trained_tensors
from ..errors import InputError
from ..flow.record import Flow
from ..frozen import frozen
from ..model import ModelSpec
from ..simulator.adapters import Adapters
from ..simulator.autograd import AutogradGraph, backward
from ..simulator.caching_allocator import StepList, replay_step_lists
from ..simulator.event_log import Event, EventRecorder, RecordedEvents, is_repeatable, is_self_contained, rename_events
from ..simulator.host_offload import HostOffload
from ..simulator.kernel_choices import EAGER_CHOICES, KernelChoices
from ..simulator.lowering import ModulePath
from ..simulator.meter import AllocationPlace, MemoryAllocator, Meter
from ..simulator.profiles.eager import EagerKernels
from ..simulator.repeat_microbatches import EventMeter
from ..simulator.replay_result import STEP_PHASES, ReplayResult
from ..simulator.tensor import BFLOAT16, DTYPES, FLOAT32, INT64, Dtype, Storage, Tensor, count_storages_as, empty
from ..workload.execution import OptimizerImplementation
from ..workload.recompute import NO_RECOMPUTATION, Recompute
from ..workload.rows import SOURCE_TOKENS, TOKENS
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .optimizers.registry import DEFAULT_OPTIMIZER
from .optimizers.run_step import run_step
from .optimizers.step import OptimizedParameter


@frozen
class TrainingConfig:
    """The configuration of a training replay.

    batch: sequences of a micro-batch, default 1.
    seq: tokens of a sequence, default 2048.
    source_tokens: tokens that an encoder reads, default `seq`.
    microbatches: micro-batches per step, whose gradients are accumulated; default 1.
    dtype: number format of weights, gradients and activations, default bfloat16.
    has_master_weights: whether the optimizer updates fp32 master weights, from fp32 copies of the gradients; default
        false.
    optimizer: name of the optimizer.
    implementation: implementation of its step, as in `run_step`; default that of the optimizer's library.
    has_momentum: whether SGD has momentum; default false.
    recompute: the modules that are recomputed in the backward pass, default none.
    kernel_choices: the kernels that run, default the eager ones.
    autocast: whether products run in bfloat16 while weights stay in `dtype` (torch.autocast), default false.
    adapters: the adapters that are trained instead of the weights; default none.
    include: names of the optional parts that are trained too (`llmcalc.optional`), default none.
    keeps_gradients: whether gradients are set to zero after a step instead of being freed, default false.
    optimizer_in_backward: whether each tensor is updated as soon as its gradient is complete, and the gradient freed;
        default false. It requires one micro-batch per step.
    torch_version: the version of torch whose optimizer steps run, such as `2.0`; default the newest.
    offloads_activations: whether saved tensors of the layers are moved to the host until the backward pass; default
        false.
    state_dtype: number format of the optimizer's states; default that of the tensors that it updates.
    gradient_dtype: number format of gradient buffers that persist between steps; each gradient is added to its buffer
        as soon as it is complete. None (default) if every parameter keeps its gradient.
    first_trained_layer: index of the first layer that is trained, where the last layers alone are; None (default) for
        all weights.
    trained_dtype: number format of such layers; None (default) for `dtype`.
    pages_states: whether states in managed memory are left out of the tensors of torch's allocator, default false.
    """

    batch: int = 1
    seq: int = 2048
    source_tokens: int | None = None
    microbatches: int = 1
    dtype: str = "bfloat16"
    has_master_weights: bool = False
    optimizer: str = DEFAULT_OPTIMIZER
    implementation: OptimizerImplementation | None = None
    has_momentum: bool = False
    recompute: Recompute = NO_RECOMPUTATION
    kernel_choices: KernelChoices = EAGER_CHOICES
    autocast: bool = False
    adapters: Adapters | None = None
    include: frozenset[str] = frozenset()
    keeps_gradients: bool = False
    optimizer_in_backward: bool = False
    torch_version: str = ""
    offloads_activations: bool = False
    state_dtype: Dtype | None = None
    gradient_dtype: Dtype | None = None
    pages_states: bool = False
    first_trained_layer: int | None = None
    trained_dtype: Dtype | None = None

    @property
    def layer_period(self) -> int:
        """The number of layers after which the run's layer pattern repeats; with frozen layers, `MAX_LAYERS`."""
        return self.recompute.every if self.first_trained_layer is None else MAX_LAYERS

    def step_optimizer(self, autograd_graph: AutogradGraph, parameters: Sequence[OptimizedParameter]) -> None:
        """Replays the optimizer's step on these parameters, and allocates its states in the first step."""
        run_step(
            autograd_graph,
            self.optimizer,
            parameters,
            self.implementation,
            self.has_momentum,
            self.state_dtype,
            self.torch_version,
            self.pages_states,
        )


MAX_LAYERS = 10**6
"""A number of layers that no model exceeds."""


def _path_without_indices(parameter_key: ModulePath) -> str:
    """Returns a parameter's path as text without layer indices."""
    return ".".join(key_part.strip(".") for key_part in parameter_key if type(key_part) is str and key_part)


class TrainingRun:
    """Replays the training steps of a model on one device.

    repeats_by_stack: stack → repeats of its pattern that run; other stacks run whole (see `linear_in_layers`).
    workspace_bytes: bytes of the cuBLAS workspace that the forward and the backward thread each allocate at their first
        product; default 0.
    memory_meter: counts or records the storages; default a meter without a device.
    program: the program that runs, default that of the whole model.
    profile: the kernels that run.
    offloaded_bytes: bytes of each tensor that the last forward pass has moved to the host.
    """

    profile: type[EagerKernels] = EagerKernels

    def __init__(
        self,
        spec: ModelSpec,
        training_config: TrainingConfig,
        repeats_by_stack: Mapping[int, int] | None = None,
        workspace_bytes: int = 0,
        memory_meter: Meter | EventRecorder | None = None,
        program: Flow | None = None,
    ) -> None:
        self.spec: ModelSpec = spec
        self.training_config: TrainingConfig = training_config
        self.workspace_bytes: int = workspace_bytes
        self.workspaces: list[Storage] = []
        self.meter: Meter | EventRecorder = Meter() if memory_meter is None else memory_meter
        self.graph: AutogradGraph = AutogradGraph(self.meter)
        self.graph.keeps_gradients = training_config.gradient_dtype is None
        run_config = RunConfig(
            Workload(
                training_config.batch,
                training_config.seq,
                source=training_config.seq if training_config.source_tokens is None else training_config.source_tokens,
                phase="training",
            )
        )
        self.program: Flow = spec.shared_program if program is None else program
        self._check_choices()
        self.lowering: EagerKernels = self.profile(
            self.graph,
            run_config,
            DTYPES[training_config.dtype],
            recompute=training_config.recompute,
            included_parts=training_config.include,
            choices=training_config.kernel_choices,
            adapters=training_config.adapters,
        )
        self.lowering.run_repeats_by_stack = dict(repeats_by_stack or {})
        self.lowering.first_trained_layer = training_config.first_trained_layer
        self.lowering.trained_dtype = training_config.trained_dtype or self.lowering.dtype
        self.labels: Tensor | None = None
        self.updated_parameters: list[OptimizedParameter] = []
        self.master_copies_of_unused_modules: list[Tensor] = []
        self.offloaded_bytes: list[int] = []

    def _check_choices(self) -> None:
        """Raises `InputError` if a kernel is chosen for a component that the model does not have."""
        kernel_choices, has_logits = self.training_config.kernel_choices, self.spec.head.type == "lm"
        if kernel_choices.expert_capacity is not None and all(
            operation.verb != "dispatch" for operation in self.program.root.steps()
        ):
            raise InputError("--moe: the model has no mixture of experts; expected dropless")
        if not has_logits and kernel_choices.cross_entropy != "eager":
            raise InputError(
                f"--cross-entropy {kernel_choices.cross_entropy}: the model has no language-model head; expected eager"
            )
        if not has_logits and kernel_choices.logits_dtype is not None:
            raise InputError(f"--logits-dtype {kernel_choices.logits_dtype}: the model has no language-model head")

    # --- a step -----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Allocates the parameters in order of use, then master weights and gradient buffers."""
        self.meter.place = AllocationPlace("set-up")
        self.lowering.allocate_parameters(self.program)
        self.prepare_training()

    def prepare_training(self) -> None:
        """Allocates master weights and gradient buffers."""
        with count_storages_as(self.meter, "optimizer"):
            for parameter_key, weight in self.lowering.parameters:
                self.meter.parameter_path = parameter_key
                self.updated_parameters.append(
                    OptimizedParameter(
                        self._tensor_to_update(weight),
                        is_layer_matrix=self._is_matrix(parameter_key),
                        path=parameter_key,
                        is_embedding_table=_path_without_indices(parameter_key).replace(".modules_to_save", "")
                        in self._table_paths,
                    )
                )
            self.meter.parameter_path = None
            self.master_copies_of_unused_modules = [
                self._tensor_to_update(weight) for weight in self.lowering.unused_modules if weight.is_leaf
            ]
        self.parameters: list[Tensor] = [weight for _, weight in self.lowering.parameters]
        self.gradient_buffers: list[Tensor] = []
        if self.training_config.gradient_dtype is not None:
            with count_storages_as(self.meter, "gradients"):
                for parameter_key, weight in self.lowering.parameters:
                    self.meter.parameter_path = parameter_key
                    self.gradient_buffers.append(empty(self.meter, weight.shape, self.training_config.gradient_dtype))
                self.meter.parameter_path = None

    def _tensor_to_update(self, weight: Tensor) -> Tensor:
        """Returns the tensor that the optimizer updates: a weight's fp32 master copy, or the weight itself."""
        updates_fp32_copy = self.training_config.has_master_weights and weight.dtype is not FLOAT32
        return empty(self.meter, weight.shape, FLOAT32) if updates_fp32_copy else weight

    @cached_property
    def _layer_matrices(self) -> frozenset[str]:
        """Returns the paths, without indices, of the weight matrices in transformer layers."""
        tensors = trained_tensors(self.program.node(), self.training_config.include)
        return frozenset(f"{tensor.path}.weight" for tensor in tensors if tensor.is_layer_matrix)

    @cached_property
    def _layer_prefixes(self) -> tuple[str, ...]:
        """Returns the path prefixes, without indices, of modules in transformer layers."""
        return tuple(f"{layer_name}." for layer_name in layer_paths(self.program.node()))

    @cached_property
    def _table_paths(self) -> frozenset[str]:
        """Returns the paths, without indices, of tables of embeddings."""
        tensors = trained_tensors(self.program.node(), self.training_config.include)
        return frozenset(f"{tensor.path}.weight" for tensor in tensors if tensor.tensor.role == "table")

    def _is_matrix(self, parameter_key: ModulePath) -> bool:
        """Whether a parameter is the matrix of a linear layer inside the transformer layers, or of an adapter."""
        parameter_path = _path_without_indices(parameter_key)
        if self.training_config.adapters is None:
            return parameter_path in self._layer_matrices
        is_in_layer = parameter_path.startswith(self._layer_prefixes)
        return is_in_layer and not parameter_path.endswith("modules_to_save.weight")

    def step(self) -> None:
        """Replays one training step: all micro-batches, then the optimizer's update."""
        self.replace_batch()
        self.run_micro_batches()
        if not self.training_config.optimizer_in_backward:
            self.update()
        self.zero_grad()

    def run_micro_batches(self) -> None:
        """Replays the micro-batches of a step, after the tokens of the first one have been allocated."""
        self.forward_and_backward()
        if self.training_config.microbatches > 1:
            self.replace_batch()
            self.forward_and_backward()

    def replace_batch(self) -> None:
        """Allocates the tokens of the next micro-batch."""
        self.meter.place = AllocationPlace("forward")
        with count_storages_as(self.meter, "activations"):
            self._allocate_batch()

    def forward_and_backward(self) -> None:
        """Replays forward and backward pass of a micro-batch; the loss is referenced until the backward pass ends."""
        loss = self.forward()
        self.backward(loss)

    def forward(self) -> Tensor:
        """Replays the forward pass; returns the loss, or the output of a model without a language-model head."""
        self.meter.place = AllocationPlace("forward")
        self.graph.autocast_dtype = BFLOAT16 if self.training_config.autocast else None
        offload = HostOffload(self.graph)
        self.graph.checkpoint_pack_hook = offload.pack if self.training_config.offloads_activations else None
        self.offloaded_bytes = offload.offloaded_bytes
        logits = self.lowering.run(self.program)
        self.graph.checkpoint_pack_hook = None
        self.meter.place = AllocationPlace("forward", path="loss")
        if self.labels is not None:
            logits = self.lowering.logits_for_loss(logits)
        loss = self.lowering.losses(logits, self.labels) if self.labels is not None else logits
        del logits
        self.graph.leave_autocast()
        self._allocate_workspaces(1)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Replays the backward pass from a loss."""
        self.meter.place = AllocationPlace("backward", path="loss")
        self._allocate_workspaces(2)
        loss_gradient = self.graph.new_tensor(loss.shape, loss.dtype, loss.strides)
        self.graph.leaf_gradient_hook = self.gradient_complete_hook
        backward(self.graph, loss, loss_gradient, self.finish_communication)
        self.lowering.logits = []

    @property
    def gradient_complete_hook(self) -> Callable[[Tensor], None] | None:
        """Returns the function that runs once a parameter's gradient is complete; None if there is none."""
        return self._update_parameter if self.training_config.optimizer_in_backward else None

    def finish_communication(self) -> None:
        """Ends communication that a backward pass has started; a run on one device has none."""

    def _allocate_workspaces(self, thread_count: int) -> None:
        """Allocates the cuBLAS workspaces of the first `thread_count` threads if they do not exist yet."""
        if self.workspace_bytes and len(self.workspaces) < thread_count:
            with count_storages_as(self.meter, "overhead"):
                self.workspaces.append(Storage(self.meter, self.workspace_bytes))

    def _allocate_batch(self) -> None:
        """Allocates token ids, which are also the labels, and frees the token ids of the previous batch."""
        config, inputs = self.training_config, self.lowering.inputs
        token_ids = empty(self.meter, (config.batch, config.seq), INT64)
        inputs[TOKENS] = token_ids
        self.lowering.create_input_frames(self.program)
        if self.spec.kind == "encoder-decoder" and self.program.audio_frames is None:
            source_tokens = config.seq if config.source_tokens is None else config.source_tokens
            inputs[SOURCE_TOKENS] = empty(self.meter, (config.batch, source_tokens), INT64)
        if self.spec.kind == "encoder":
            inputs[SOURCE_TOKENS] = token_ids
        self.labels = None if self.spec.head.type != "lm" else self.lowering.aten.flatten(token_ids)

    def _update_parameter(self, weight: Tensor) -> None:
        """Updates one parameter and frees the gradient (`register_post_accumulate_grad_hook`)."""
        trained_parameter = self._trained_parameter_by_id.get(id(weight))
        if trained_parameter is None:
            return
        trained_parameter.gradient = weight.grad
        self.training_config.step_optimizer(self.graph, [trained_parameter])
        trained_parameter.gradient = weight.grad = None

    @cached_property
    def _trained_parameter_by_id(self) -> dict[int, OptimizedParameter]:
        return dict(zip(map(id, self.parameters), self.updated_parameters, strict=True))

    def update(self) -> None:
        """Replays the optimizer's step; with master weights, gradients are first copied to fp32."""
        self.meter.place = AllocationPlace("step")
        gradient_copies: list[Tensor] = []
        gradients: Sequence[Tensor | None] = self.gradient_buffers or [weight.grad for weight in self.parameters]
        for trained_parameter, gradient in zip(self.updated_parameters, gradients, strict=True):
            trained_parameter.gradient, self.meter.parameter_path = gradient, trained_parameter.path
            if self.training_config.has_master_weights and gradient is not None and gradient.dtype is not FLOAT32:
                trained_parameter.gradient = self.graph.new_tensor(gradient.shape, FLOAT32)
                gradient_copies.append(trained_parameter.gradient)
        self.meter.parameter_path = None
        del gradients
        with self.graph.no_grad():
            self.training_config.step_optimizer(self.graph, self.updated_parameters)
        for trained_parameter in self.updated_parameters:
            trained_parameter.gradient = None

    def zero_grad(self) -> None:
        """Frees the gradients, or sets gradients that stay allocated to zero."""
        if not self.training_config.keeps_gradients:
            for weight in self.parameters:
                weight.grad = None


def replay(
    spec: ModelSpec,
    training_config: TrainingConfig,
    device: MemoryAllocator | None = None,
    repeats_by_stack: Mapping[int, int] | None = None,
    workspace_bytes: int = 0,
) -> ReplayResult:
    """Replays the set-up and two training steps. Raises `UnsupportedKernel` for an operation without a kernel.

    device: the allocator; None (default) counts bytes of tensors only.
    repeats_by_stack, workspace_bytes: as in `TrainingRun`.
    """
    meter = Meter(device)
    return replay_steps(TrainingRun(spec, training_config, repeats_by_stack, workspace_bytes, meter), meter)


class TrainingSteps(Protocol):
    """The interface of a training run whose steps can be replayed."""

    def set_up(self) -> None:
        """Allocates the tensors that exist before the first step."""

    def step(self) -> None:
        """Replays one training step."""


def replay_steps(training_run: TrainingSteps, memory_meter: Meter) -> ReplayResult:
    """Replays set-up and two training steps, and returns the peaks. memory_meter: the meter of the run."""
    training_run.set_up()
    return _replay_two_steps(training_run, memory_meter)


def _replay_two_steps(training_run: TrainingSteps, memory_meter: Meter) -> ReplayResult:
    """Replays two steps after the set-up, and returns the peaks and bytes of set-up and steps."""
    replay_result = ReplayResult(set_up_bytes=memory_meter.live_bytes)
    training_run.step()
    first_peaks, memory_meter.peaks = memory_meter.peaks, {}
    memory_meter.place = AllocationPlace()
    training_run.step()
    memory_meter.place = AllocationPlace("after")
    replay_result.store_step_peaks(first_peaks, memory_meter.peaks)
    replay_result.final_bytes = memory_meter.live_bytes
    if memory_meter.allocator is not None:
        replay_result.read_allocator(memory_meter.allocator, memory_meter.live_bytes, memory_meter.peak_bytes)
    return replay_result


@frozen
class CountedSteps:
    """Two replayed steps, whose recorded allocations and frees can be replayed on several caching allocators.

    result: the result of the replay, without the allocator's bytes.
    step_lists, storage_count: as in `replay_step_lists`.
    requested_bytes, peak_requested: the requested bytes at the end and at the peak.
    """

    result: ReplayResult
    step_lists: Sequence[StepList]
    storage_count: int
    requested_bytes: int
    peak_requested: int

    def result_on_allocator(self, expandable_segments: bool) -> ReplayResult:
        """Returns the result with the reserved bytes of a caching allocator that replays the recorded steps."""
        replay_result = self.result.copy()
        allocator = replay_step_lists(self.step_lists, self.storage_count, expandable_segments)
        replay_result.read_allocator(allocator, self.requested_bytes, self.peak_requested)
        return replay_result


def count_steps(training_run: TrainingSteps, memory_meter: EventMeter) -> CountedSteps:
    """Replays two steps after a run's set-up without a caching allocator. memory_meter: the meter of the run."""
    replay_result = _replay_two_steps(training_run, memory_meter)
    memory_meter.end_event_list()
    return CountedSteps(
        replay_result,
        memory_meter.step_lists,
        memory_meter.storage_count,
        memory_meter.live_bytes,
        memory_meter.peak_bytes,
    )


def replay_steps_on_allocator(
    training_run: TrainingSteps, memory_meter: EventMeter, expandable_segments: bool
) -> ReplayResult:
    """Replays set-up and two steps on a caching allocator. memory_meter: the meter of the run."""
    return count_steps(training_run, memory_meter).result_on_allocator(expandable_segments)


def replay_shorter_on_allocator(
    full_run: tuple[TrainingSteps, EventMeter],
    shorter_run: tuple[TrainingSteps, EventMeter],
    expandable_segments: bool,
    micro_batches: int,
) -> ReplayResult:
    """Counts the full run's tensors; estimates the caching allocator's overhead from a shorter run.

    full_run, shorter_run: the runs after their set-up, each with its meter.
    micro_batches: the micro-batches of a step of the shorter run.
    """
    replay_result = _replay_two_steps(*full_run)
    replay_result.estimate_from_shorter_replay(
        replay_steps_on_allocator(*shorter_run, expandable_segments), micro_batches
    )
    return replay_result


def record_training(
    spec: ModelSpec,
    training_config: TrainingConfig,
    repeats_by_stack: Mapping[int, int] | None = None,
    workspace_bytes: int = 0,
) -> RecordedEvents:
    """Records the allocations of set-up and two steps of a `TrainingRun` for `RepeatAnalysis`."""
    recorded_steps = None
    if not (training_config.keeps_gradients or training_config.optimizer_in_backward):
        recorded_steps = _record_passes_once(
            TrainingRun(spec, training_config, repeats_by_stack, workspace_bytes, memory_meter := EventRecorder()),
            memory_meter,
        )
    return recorded_steps or record_two_steps(
        TrainingRun(spec, training_config, repeats_by_stack, workspace_bytes, memory_meter := EventRecorder()),
        memory_meter,
    )


def _record_passes_once(training_run: TrainingRun, memory_meter: EventRecorder) -> RecordedEvents | None:
    """Returns the memory events of two training steps from one run of the micro-batches; None if the steps differ.

    The first pass allocates the parameters in the order in which it reads them, as the set-up would.
    """
    memory_meter.parameter_events = []
    training_run.replace_batch()
    events = memory_meter.take_events()
    training_run.run_micro_batches()
    pass_events, set_up_events = memory_meter.take_events(), memory_meter.parameter_events
    memory_meter.parameter_events = None
    if training_run.lowering.has_skipped_steps:
        return None
    memory_meter.place = AllocationPlace("set-up")
    training_run.lowering.allocate_unread_parameters(training_run.program)
    training_run.prepare_training()
    return repeat_steps(training_run, memory_meter, set_up_events + memory_meter.take_events(), events, pass_events)


def repeat_steps(
    training_run: TrainingRun,
    memory_meter: EventRecorder,
    set_up_events: Sequence[Event],
    batch: Sequence[Event],
    pass_events: Sequence[Event],
) -> RecordedEvents | None:
    """Returns the allocations and frees of two steps, which repeat the recorded passes; None if the steps differ."""
    training_run.update()
    first_events = memory_meter.take_events()
    training_run.update()
    events = memory_meter.take_events()
    training_run.zero_grad()
    zero_grad_events = memory_meter.take_events()
    training_run.replace_batch()
    next_batch_events = memory_meter.take_events()
    if not (is_repeatable(batch, pass_events, zero_grad_events, next_batch_events) and is_self_contained(events)):
        return None
    next_batch_events += rename_events(batch, next_batch_events)
    return RecordedEvents(
        set_up_events,
        [batch, pass_events, first_events, zero_grad_events],
        [next_batch_events, pass_events, events, zero_grad_events],
        STEP_PHASES,
    )


def record_two_steps(training_run: TrainingRun, memory_meter: EventRecorder) -> RecordedEvents:
    """Records two training steps by replaying both, one after the other."""
    training_run.set_up()
    set_up_events = memory_meter.take_events()
    training_run.step()
    first_events = memory_meter.take_events()
    training_run.step()
    return RecordedEvents(set_up_events, [first_events], [memory_meter.take_events()], STEP_PHASES)
