"""A training step on one device, replayed: every tensor from set-up to the second step, on a model of the allocator.

The second step is the steady state: the optimizer's states exist, and the allocator's free blocks are those that the
first step left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from ..costs.trained_tensors import layers_of, trained_tensors
from ..errors import InputError
from ..flow.record import Flow
from ..model import ModelSpec
from ..simulator.adapters import Adapters
from ..simulator.autograd import Graph, backward
from ..simulator.caching_allocator import PrefixCache
from ..simulator.choices import EAGER, Choices
from ..simulator.event_log import Event, RecordedEvents, Recorder, passing, renamed, repeatable
from ..simulator.lowering import Path
from ..simulator.meter import Device, Meter, Place
from ..simulator.offload import Offload
from ..simulator.profiles.eager import Eager
from ..simulator.repeat_microbatches import EventMeter
from ..simulator.replay_result import PHASES, ReplayResult
from ..simulator.tensor import BFLOAT16, DTYPES, FLOAT32, INT64, Dtype, Storage, Tensor, counted_as, empty
from ..workload.execution import OptimizerImplementation
from ..workload.recompute import NONE, Recompute
from ..workload.rows import SOURCE, TOKENS
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .optimizers.registry import DEFAULT
from .optimizers.run_step import run_step
from .optimizers.step import Trained


@dataclass(frozen=True)
class Training:
    """How a model is trained.

    batch: sequences of a micro-batch. seq: their tokens. source: tokens that an encoder reads, `seq` by default.
    microbatches: the number of micro-batches per step, whose gradients are accumulated; 1 by default.
    dtype: number format of weights, gradients and activations.
    master: whether the optimizer updates an fp32 copy of the weights; it reads fp32 copies of the gradients.
    optimizer, implementation, momentum: as in `run_step`; by default the library's own implementation.
    choices: which kernels run where people choose.
    autocast: whether products run in bfloat16 while weights stay in `dtype` (torch.autocast), false by default.
    adapters: what is trained in the place of the weights; None (default) if the weights are.
    include: the names of the optional parts that are trained too (`llmcalc.optional`), none by default.
    recompute: what runs again in the backward pass, nothing by default.
    keeps_gradients: whether gradients are set to zero after a step instead of being freed, false by default.
    optimizer_in_backward: whether each tensor is updated as soon as its gradient is complete, and the gradient freed;
        false by default. It takes one micro-batch per step.
    torch: the version of torch whose optimizer steps run, such as `2.0`; by default the newest.
    offload: whether what the layers save waits on the host for the backward pass; false by default.
    state_dtype: the type of the optimizer's states; None (default) for that of the tensors which it updates.
    gradient_dtype: the type of sums of gradients that are kept between steps, to which each gradient is added as soon
        as it is complete; None (default) if each tensor keeps its gradient itself.
    """

    batch: int = 1
    seq: int = 2048
    source: int | None = None
    microbatches: int = 1
    dtype: str = "bfloat16"
    master: bool = False
    optimizer: str = DEFAULT
    implementation: OptimizerImplementation | None = None
    momentum: bool = False
    recompute: Recompute = NONE
    choices: Choices = EAGER
    autocast: bool = False
    adapters: Adapters | None = None
    include: frozenset[str] = frozenset()
    keeps_gradients: bool = False
    optimizer_in_backward: bool = False
    torch: str = ""
    offload: bool = False
    state_dtype: Dtype | None = None
    gradient_dtype: Dtype | None = None


class TrainingRun:
    """Replays steps of a model.

    layers: how many repeats of each stack's pattern run; all by default (see `fold`).
    workspace: bytes that the forward and the backward thread take at their first product.
    meter: what counts storages, or writes them down; by default it counts them, on no device.
    program: what it runs, by default that of the whole model.
    profile: the kernels that run.
    """

    profile: type[Eager] = Eager

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        layers: Mapping[int, int] | None = None,
        workspace: int = 0,
        meter: Meter | Recorder | None = None,
        program: Flow | None = None,
    ) -> None:
        self.spec, self.training, self.workspace = spec, training, workspace
        self.workspaces: list[Storage] = []
        self.meter = Meter() if meter is None else meter
        self.graph = Graph(self.meter)
        self.graph.keeps_gradients = training.gradient_dtype is None
        run_config = RunConfig(
            Workload(
                training.batch,
                training.seq,
                source=training.seq if training.source is None else training.source,
                phase="training",
            )
        )
        self.program: Flow = spec.program() if program is None else program
        self._check_choices()
        self.lowering = self.profile(
            self.graph,
            run_config,
            DTYPES[training.dtype],
            recompute=training.recompute,
            include=training.include,
            choices=training.choices,
            adapters=training.adapters,
        )
        self.lowering.run_only = dict(layers or {})
        self.labels: Tensor | None = None
        self.trained: list[Trained] = []
        self.copies: list[Tensor] = []

    def _check_choices(self) -> None:
        """Raises `InputError` for kernels of what the model does not have."""
        choices, has_logits = self.training.choices, self.spec.head.type == "lm"
        if choices.capacity is not None and all(step.verb != "dispatch" for step in self.program.root.steps()):
            raise InputError("--moe: the model has no mixture of experts; expected dropless")
        if not has_logits and choices.cross_entropy != "eager":
            raise InputError(
                f"--cross-entropy {choices.cross_entropy}: the model has no language-model head; expected eager"
            )
        if not has_logits and choices.logits_dtype is not None:
            raise InputError(f"--logits-dtype {choices.logits_dtype}: the model has no language-model head")

    # --- a step -----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Makes the parameters in the order in which the program uses them, and what training keeps beside them."""
        self.meter.place = Place("set-up")
        self.lowering.prepare(self.program)
        self.prepare_training()

    def prepare_training(self) -> None:
        """Makes what training keeps beside the parameters."""
        with counted_as(self.meter, "optimizer"):
            for key, weight in self.lowering.parameters:
                self.meter.whose = key
                self.trained.append(Trained(self._updated(weight), matrix=self._is_matrix(key), path=key))
            self.meter.whose = None
            self.copies = [self._updated(weight) for weight in self.lowering.unused if weight.leaf]
        self.parameters = [weight for _, weight in self.lowering.parameters]
        self.sums: list[Tensor] = []
        if self.training.gradient_dtype is not None:
            with counted_as(self.meter, "gradients"):
                for key, weight in self.lowering.parameters:
                    self.meter.whose = key
                    self.sums.append(empty(self.meter, weight.shape, self.training.gradient_dtype))
                self.meter.whose = None

    def _updated(self, weight: Tensor) -> Tensor:
        """What the optimizer updates in the place of a weight: its copy in fp32, if there are master weights."""
        copied = self.training.master and weight.dtype is not FLOAT32
        return empty(self.meter, weight.shape, FLOAT32) if copied else weight

    @cached_property
    def _layer_matrices(self) -> frozenset[str]:
        """The paths of the weights that are matrices of layers, without indices."""
        tensors = trained_tensors(self.program.node(), self.training.include)
        return frozenset(f"{tensor.path}.weight" for tensor in tensors if tensor.is_layer_matrix)

    def _is_matrix(self, key: Path) -> bool:
        """Whether the parameter of that path is the matrix of a linear layer in a layer, or of an adapter beside it."""
        path = ".".join(part.strip(".") for part in key if type(part) is str and part)
        if self.training.adapters is None:
            return path in self._layer_matrices
        inside = any(path.startswith(f"{layer}.") for layer in layers_of(self.program.node()))
        return inside and not path.endswith("modules_to_save.weight")

    def step(self) -> None:
        """Runs one step over all micro-batches."""
        self.next_batch()
        self.micro_batches()
        if not self.training.optimizer_in_backward:
            self.update()
        self.zero_grad()

    def micro_batches(self) -> None:
        """Runs the micro-batches of a step, of which the first has its tokens. From the second on all are alike."""
        self.forward_and_backward()
        if self.training.microbatches > 1:
            self.next_batch()
            self.forward_and_backward()

    def next_batch(self) -> None:
        """Makes the tokens of the next micro-batch."""
        self.meter.place = Place("forward")
        with counted_as(self.meter, "activations"):
            self._batch()

    def forward_and_backward(self) -> None:
        """One micro-batch. Its loss is named until the backward pass has run."""
        loss = self.forward()
        self.backward(loss)

    def forward(self) -> Tensor:
        """Returns the loss of one micro-batch; of a model without a language-model head, its output."""
        self.meter.place = Place("forward")
        self.graph.autocast = BFLOAT16 if self.training.autocast else None
        self.graph.away = Offload(self.graph).pack if self.training.offload else None
        logits = self.lowering.run(self.program)
        self.graph.away = None
        self.meter.place = Place("forward", path="loss")
        loss = self.lowering.losses(logits, self.labels) if self.labels is not None else logits
        del logits
        self.graph.leave_autocast()
        self._take_workspace(1)
        return loss

    def backward(self, loss: Tensor) -> None:
        """Runs the backward pass from a loss."""
        self.meter.place = Place("backward", path="loss")
        self._take_workspace(2)
        seed = self.graph.new(loss.shape, loss.dtype, loss.strides)
        self.graph.completed = self.on_gradient
        backward(self.graph, loss, seed, self.finish_backward)
        self.lowering.logits = []

    @property
    def on_gradient(self) -> Callable[[Tensor], None] | None:
        """What is called with a parameter whose gradient is complete; None for nothing."""
        return self._update_one if self.training.optimizer_in_backward else None

    def finish_backward(self) -> None:
        """What follows a backward pass, before its graph is freed: nothing on one device."""

    def _take_workspace(self, threads: int) -> None:
        """The workspace of a thread that has none yet."""
        if self.workspace and len(self.workspaces) < threads:
            with counted_as(self.meter, "overhead"):
                self.workspaces.append(Storage(self.meter, self.workspace))

    def _batch(self) -> None:
        """The token ids, whose names get those of the next batch; they are their own labels."""
        training, given = self.training, self.lowering.given
        ids = empty(self.meter, (training.batch, training.seq), INT64)
        given[TOKENS] = ids
        self.lowering.take_frames(self.program)
        if self.spec.kind == "encoder-decoder" and self.program.frames is None:
            source = training.seq if training.source is None else training.source
            given[SOURCE] = empty(self.meter, (training.batch, source), INT64)
        if self.spec.kind == "encoder":
            given[SOURCE] = ids
        self.labels = None if self.spec.head.type != "lm" else self.lowering.t.flatten(ids)

    def _update_one(self, weight: Tensor) -> None:
        """The optimizer's step of one parameter, whose gradient is freed (`register_post_accumulate_grad_hook`)."""
        one = self._by_parameter.get(id(weight))
        if one is None:
            return
        one.gradient = weight.grad
        training = self.training
        run_step(
            self.graph,
            training.optimizer,
            [one],
            training.implementation,
            training.momentum,
            training.state_dtype,
            training.torch,
        )
        one.gradient = weight.grad = None

    @cached_property
    def _by_parameter(self) -> dict[int, Trained]:
        return {id(weight): one for weight, one in zip(self.parameters, self.trained, strict=True)}

    def update(self) -> None:
        """The optimizer's step; with master weights, from fp32 copies of the gradients into the master weights."""
        self.meter.place = Place("step")
        copies: list[Tensor] = []
        gradients: Sequence[Tensor | None] = self.sums or [weight.grad for weight in self.parameters]
        for one, gradient in zip(self.trained, gradients, strict=True):
            one.gradient, self.meter.whose = gradient, one.path
            if self.training.master and gradient is not None and gradient.dtype is not FLOAT32:
                one.gradient = self.graph.new(gradient.shape, FLOAT32)
                copies.append(one.gradient)
        self.meter.whose = None
        del gradients
        with self.graph.no_grad():
            run_step(
                self.graph,
                self.training.optimizer,
                self.trained,
                self.training.implementation,
                self.training.momentum,
                self.training.state_dtype,
                self.training.torch,
            )
        for one in self.trained:
            one.gradient = None

    def zero_grad(self) -> None:
        """Frees the gradients, or keeps them as zeros."""
        if not self.training.keeps_gradients:
            for weight in self.parameters:
                weight.grad = None


def replay(
    spec: ModelSpec,
    training: Training,
    device: Device | None = None,
    layers: Mapping[int, int] | None = None,
    workspace: int = 0,
) -> ReplayResult:
    """Replays set-up and two steps, as `TrainingRun` does. Raises `Unsupported` for a step without kernels.

    device: where blocks come from; None (default) counts exact bytes. The second step finds the free blocks that the
    first one leaves.
    """
    meter = Meter(device)
    return replayed(TrainingRun(spec, training, layers, workspace, meter), meter)


class Steps(Protocol):
    """A run of steps that are alike."""

    def set_up(self) -> None:
        """Makes what stays."""

    def step(self) -> None:
        """Runs one step."""


def replayed(run: Steps, meter: Meter) -> ReplayResult:
    """What set-up and two steps of a run find. meter: the run's."""
    run.set_up()
    found = ReplayResult(set_up=meter.now)
    run.step()
    first, meter.peaks = meter.peaks, {}
    meter.place = Place()
    run.step()
    meter.place = Place("after")
    found.take_peaks(first, meter.peaks)
    found.after = meter.now
    if meter.device is not None:
        found.read(meter.device, meter.now, meter.peak)
    return found


def replayed_on_allocator(run: Steps, meter: EventMeter, prefix_cache: PrefixCache) -> ReplayResult:
    """What set-up and two steps of a run find, with what an allocator counts. meter: the run's."""
    found = replayed(run, meter)
    meter.cut()
    found.read(prefix_cache.played(meter.pieces, meter.count, meter.opening), meter.now, meter.peak)
    return found


def record(
    spec: ModelSpec, training: Training, layers: Mapping[int, int] | None = None, workspace: int = 0
) -> RecordedEvents:
    """Records set-up and two steps, for `RepeatAnalysis`. layers: as of `TrainingRun`."""
    found = None
    if not (training.keeps_gradients or training.optimizer_in_backward):
        found = _from_one_pass(TrainingRun(spec, training, layers, workspace, meter := Recorder()), meter)
    return found or two_steps(TrainingRun(spec, training, layers, workspace, meter := Recorder()), meter)


def _from_one_pass(run: TrainingRun, meter: Recorder) -> RecordedEvents | None:
    """Two steps whose micro-batches are recorded once; None if they are not alike.

    The first pass makes the parameters, in the order in which it reads them, as set-up would.
    """
    meter.apart = []
    run.next_batch()
    batch = meter.cut()
    run.micro_batches()
    passes, set_up = meter.cut(), meter.apart
    meter.apart = None
    if run.lowering.skipped:
        return None
    meter.place = Place("set-up")
    run.lowering.prepare_unread(run.program)
    run.prepare_training()
    return repeated(run, meter, set_up + meter.cut(), batch, passes)


def repeated(
    run: TrainingRun, meter: Recorder, set_up: Sequence[Event], batch: Sequence[Event], passes: Sequence[Event]
) -> RecordedEvents | None:
    """Two steps with the same passes; None if these are not alike. batch: the events that make their tokens."""
    run.update()
    first = meter.cut()
    run.update()
    update = meter.cut()
    run.zero_grad()
    freed = meter.cut()
    run.next_batch()
    next_batch = meter.cut()
    if not (repeatable(batch, passes, freed, next_batch) and passing(update)):
        return None
    next_batch += renamed(batch, next_batch)
    return RecordedEvents(set_up, [batch, passes, first, freed], [next_batch, passes, update, freed], PHASES)


def two_steps(run: TrainingRun, meter: Recorder) -> RecordedEvents:
    """Two steps that are both recorded."""
    run.set_up()
    set_up = meter.cut()
    run.step()
    first = meter.cut()
    run.step()
    return RecordedEvents(set_up, [first], [meter.cut()], PHASES)
