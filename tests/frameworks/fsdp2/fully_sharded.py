"""Training steps of the reference under torch's `fully_shard`, on a fake process group, and the same steps replayed.

`FSDPMemTracker` watches the steps of torch. Two of its own habits are undone here: a loop variable of it keeps a whole
gradient, and hooks that it puts on every module keep gradients of a module's inputs. Where it runs other hooks than
torch itself (modules that share a group), `Followed` watches alone.
"""

from __future__ import annotations

import inspect
import textwrap
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools import fsdp2_mem_tracker
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from llmcalc.components.runtime import PassState
from llmcalc.device_memory.training import TrainingConfig, TrainingRun
from llmcalc.frameworks.fsdp2.param_groups import HookMoment, ParamGroup
from llmcalc.frameworks.fsdp2.training import TORCHTITAN_FSDP_SETTINGS, FsdpRun, FsdpSettings, sharding_of_rank
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.rank_program import rank_program
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import DTYPES
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.module_measurements import default_dtype, encoder_input
from llmcalc.witnesses.training_loop import build_optimizers, loss_or_output, token_ids
from tests.simulator.witness import Alive

STEPS = 2
"""Steps of one micro-batch; of several, one step."""

MOMENTS: Mapping[tuple[HookMoment, bool], str] = {
    (moment, after): f"{'After' if after else 'Before'} {moment.title()}"
    for moment in ("pre-forward", "post-forward", "pre-backward", "post-backward")
    for after in (False, True)
}
"""A hook of a group, and whether it has run → the tracker's name of that moment."""

STEP_COUNT = 4
"""Bytes of an optimizer's step count, which is on the host when the model is on a GPU."""


class Seen(NamedTuple):
    """Bytes of one micro-batch, or of an optimizer's step."""

    step: int
    batch: int
    phase: str


@dataclass
class Steps:
    """What was seen.

    bytes: the most in each phase; after set-up, forward and backward passes, and steps. snapshots: (group, moment,
    step) → bytes each time. parameters: how many have a step count on the host, which torch's bytes here include.
    """

    bytes: dict[Seen, int] = field(default_factory=dict)
    snapshots: dict[tuple[str, str, int], list[int]] = field(default_factory=dict)
    parameters: int = 0

    def without_counts(self) -> dict[Any, Any]:
        """All figures without step counts, which the first optimizer step makes."""
        own = STEP_COUNT * self.parameters
        later = {"step", "end"}
        figures: dict[Any, Any] = {
            key: value - (own if key.step > 1 or key.phase in later else 0) for key, value in self.bytes.items()
        }
        for name, values in self.snapshots.items():
            figures[name] = [value - (own if name[2] > 1 else 0) for value in values]
        return figures


# --- torch ------------------------------------------------------------------------------------------------------------


def _without_loop_variable() -> Callable[..., Any]:
    """The tracker's wrapper of `post_backward`, which lets go of its loop variable after the loop."""
    method = FSDPMemTracker._fsdp_param_group_post_backward
    source, after = textwrap.dedent(inspect.getsource(method)), "        mod_stat = self.memory_tracking[fsdp_mod]"
    assert source.count(after) == 1
    made: dict[str, Any] = {}
    exec(source.replace(after, f"        unsharded_grad = None\n{after}"), vars(fsdp2_mem_tracker), made)
    return made[method.__name__]  # type: ignore[no-any-return]


class Names:
    """The part of `ModTracker` that the tracker asks for: no hooks on modules."""

    parents = frozenset({"Global", "a step"})

    def __init__(self, model: nn.Module) -> None:
        self.names = {module: name for name, module in model.named_modules()}

    def get_known_fqn(self, module: nn.Module) -> str:
        return self.names[module]

    @property
    def is_bw(self) -> bool:
        return torch._C._current_graph_task_id() != -1

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class Tracker(FSDPMemTracker):
    """torch's tracker, with peaks that start anew in each phase."""

    _fsdp_param_group_post_backward = _without_loop_variable()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(model, optimizer)
        self._mod_tracker: Any = Names(model)
        self.peak = 0

    @property
    def now(self) -> int:
        return sum(one["Total"] for one in self._curr_mem_snap.values())

    def _update_peak_stats(self, _: Any) -> None:
        """The most of the whole model alone: that of each module takes long to keep."""
        self.peak = max(self.peak, self.now)

    def get_tracker_snapshot(self, type: str = "current") -> Any:
        """A copy, which torch makes deeper."""
        assert type == "current"
        return {device: dict(one) for device, one in self._curr_mem_snap.items()}

    def restart(self) -> None:
        self.peak = self.now

    def found(self) -> Iterator[tuple[str, str, list[int]]]:
        """The snapshots of every group since the last call."""
        for one in self.memory_tracking.values():
            for state, values in one.snapshots.items():
                if state.value in MOMENTS.values():
                    yield one.mod_fqn, state.value, [sum(each["Total"] for each in value.values()) for value in values]
        self.reset_mod_stats()


class Followed(Alive):
    """Storages that may be resized, without hooks on modules."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(device="cpu")
        self.sizes: dict[int, int] = {}
        self.track_tensors(one.to_local() for one in model.parameters())  # type: ignore[attr-defined]
        self.track_tensors(model.buffers())

    def _track_tensor(self, tensor: torch.Tensor, func: Any) -> None:
        if hasattr(tensor, "to_local"):
            tensor = tensor.to_local()
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = 0
            weakref.finalize(storage, self._resized, key, None)
        self._resized(key, storage.nbytes())
        self.peak = max(self.peak, self.now)

    def _resized(self, key: int, size: int | None) -> None:
        self.now += (size or 0) - self.sizes.pop(key)
        if size is not None:
            self.sizes[key] = size

    def restart(self) -> None:
        self.peak = self.now

    def found(self) -> Iterator[tuple[str, str, list[int]]]:
        yield from ()

    def __enter__(self) -> Any:
        self.resize = resize = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> None:
            resize(storage, size)
            if storage._cdata in self.sizes:
                self._resized(storage._cdata, size)

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign, assignment]
        return super().__enter__()

    def __exit__(self, *args: Any) -> None:
        torch.UntypedStorage.resize_ = self.resize  # type: ignore[method-assign]
        super().__exit__(*args)


@contextmanager
def process_group(layout: Layout, rank: int) -> Iterator[Any]:
    """The mesh of a fake process group, in which collective operations do nothing."""
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    try:
        if layout.hsdp_replicas == 1:
            yield init_device_mesh("cpu", (layout.world_size,))
        else:
            sizes = layout.hsdp_replicas, layout.shard_count
            yield init_device_mesh("cpu", sizes, mesh_dim_names=("replicas", "shards"))
    finally:
        dist.destroy_process_group()


def is_layer(name: str) -> bool:
    """Whether the module of that path is a layer of a stack."""
    above, _, own = name.rpartition(".")
    return own.isdigit() and above.rpartition(".")[2] == "layers"


def shard_layers(model: Any, training: TrainingConfig, layout: Layout, fsdp: FsdpSettings, mesh: Any) -> list[str]:
    """Wraps each layer and then the whole model by `fully_shard`; returns the paths of the layers."""
    formats = MixedPrecisionPolicy(getattr(torch, training.dtype), getattr(torch, fsdp.reduction_format))

    def wrap(module: Any, reshards: bool | None) -> None:
        fully_shard(module, mesh=mesh, mp_policy=formats, reshard_after_forward=reshards)

    layers = [name for name, _ in model.named_modules() if is_layer(name)]
    for name in layers:
        wrap(model.get_submodule(name), layout.reshard and not (fsdp.keeps_last_layer_gathered and name == layers[-1]))
    if fsdp.outer_group_keys:
        wrap(model.embed_tokens, layout.reshard)
    if fsdp.outer_groups == "separate":
        wrap([model.norm, model.lm_head], False)
    wrap(model, None)
    return layers


def sharded(spec: ModelSpec, training: TrainingConfig, layout: Layout, fsdp: FsdpSettings, mesh: Any) -> Any:
    """The reference, each layer and then the whole of it wrapped by `fully_shard`."""
    with default_dtype(getattr(torch, fsdp.frozen_dtype or fsdp.dtype)):
        model: Any = spec.reference()
    adapters = None if training.adapters is None else replace(training.adapters, dtype=DTYPES[fsdp.dtype])
    kernel_variants.apply_kernel_choices(model, training.kernel_choices, training.recompute, adapters)
    layers = shard_layers(model, training, layout, fsdp, mesh)
    modules = [model.get_submodule(name) for name in layers]
    for i, module in enumerate(modules):  # as in PyTorch's distributed/FSDP2/example.py
        ahead = fsdp.prefetched_layer_count
        if ahead and i < len(modules) - ahead:
            module.set_modules_to_forward_prefetch([modules[i + j] for j in range(1, ahead + 1)])
        if ahead and i >= ahead:
            module.set_modules_to_backward_prefetch([modules[i - j] for j in range(1, ahead + 1)])
    return model


@contextmanager
def without_shared_fields() -> Iterator[None]:
    """Hides the fields of `PassState` from `fully_shard`: what all layers share is no argument of theirs."""
    fields = vars(PassState)["__dataclass_fields__"]
    del PassState.__dataclass_fields__
    try:
        yield
    finally:
        PassState.__dataclass_fields__ = fields


def by_torch(
    spec: ModelSpec,
    training: TrainingConfig,
    layout: Layout,
    rank: int,
    fsdp: FsdpSettings = TORCHTITAN_FSDP_SETTINGS,
    watch: type[Tracker | Followed] = Tracker,
    beside: Any = None,
    fake: bool | None = None,
    mesh_of: Callable[..., Any] = process_group,
    shard: Callable[..., Any] = sharded,
) -> Steps:
    """Steps of the reference.

    beside: a further context, around the steps.
    fake: whether its tensors have no values, which takes longer for a small model; by default where the flash kernel of
        GPUs runs, which does on such tensors alone.
    mesh_of, shard: context of a rank's mesh; function that builds the reference and shards it over the mesh.
    """
    fake = training.kernel_choices.attention == "flash" if fake is None else fake
    fused = training.implementation == "fused"
    seen = Steps()
    with without_shared_fields(), mesh_of(layout, rank) as mesh, FakeTensorMode() if fake else nullcontext():
        model = shard(spec, training, layout, fsdp, mesh)
        parameters = [(one, False) for one in model.parameters()]
        (optimizer,) = build_optimizers(
            training.optimizer, parameters, training.implementation or "foreach", training.has_momentum
        )
        tracker: Any = watch(model, optimizer)
        with tracker:
            seen.bytes[Seen(0, 0, "set-up")] = tracker.now
            with beside or nullcontext():
                _steps(spec, training, fsdp, model, optimizer, tracker, seen, fake)
        seen.parameters = 0 if fused else sum("step" in one for one in optimizer.state.values())
    return seen


def _steps(
    spec: ModelSpec,
    training: TrainingConfig,
    fsdp: FsdpSettings,
    model: Any,
    optimizer: Any,
    tracker: Any,
    seen: Steps,
    fake: bool,
) -> None:
    for step in range(1, 1 + steps(training)):
        for batch in range(training.microbatches):
            ids = token_ids(spec, training.batch, training.seq, "cpu")
            source = encoder_input(spec, training.batch, training.seq, training.dtype, "cpu")
            model.set_requires_gradient_sync(fsdp.reduces_each_microbatch or batch == training.microbatches - 1)
            tracker.restart()
            with kernel_variants.kernel_context(training.kernel_choices):
                loss = loss_or_output(spec, model, ids, source, training.kernel_choices)
                seen.bytes[Seen(step, batch, "forward")], seen.bytes[Seen(step, batch, "live")] = (
                    tracker.peak,
                    tracker.now,
                )
                tracker.restart()
                loss.backward(torch.ones_like(loss))
            seen.bytes[Seen(step, batch, "backward")] = tracker.peak
            del loss
            seen.bytes[Seen(step, batch, "after")] = tracker.now
        for name, moment, values in tracker.found():
            seen.snapshots[name, moment, step] = values
        tracker.restart()
        optimizer.step()
        if step > 1 or not fake:  # at its first step DTensor runs each operation on fake tensors too
            seen.bytes[Seen(step, 0, "step")] = tracker.peak
        optimizer.zero_grad()
        seen.bytes[Seen(step, 0, "end")] = tracker.now


def steps(training: TrainingConfig) -> int:
    """How many steps run."""
    return STEPS if training.microbatches == 1 else 1


# --- the replay -------------------------------------------------------------------------------------------------------


def replayed(
    spec: ModelSpec, training: TrainingConfig, layout: Layout, rank: int, fsdp: FsdpSettings = TORCHTITAN_FSDP_SETTINGS
) -> Steps:
    """The same steps, replayed."""
    program = rank_program(spec, layout, rank) if layout.tp > 1 else None
    run = FsdpRun(
        spec,
        training,
        sharding_of_rank(training, layout, rank, fsdp),
        fsdp,
        layout.reshard,
        memory_meter=Meter(),
        program=program,
    )
    return steps_of(run, training, fsdp)


def steps_of(run: TrainingRun, training: TrainingConfig, fsdp: FsdpSettings = TORCHTITAN_FSDP_SETTINGS) -> Steps:
    """The steps of a run."""
    seen = Steps()
    meter: Any = run.meter
    run.graph.adds_in_place = False  # as under every dispatch mode
    run.set_up()
    seen.bytes[Seen(0, 0, "set-up")] = meter.live_bytes
    for step in range(1, 1 + steps(training)):

        def watch(group: ParamGroup, moment: HookMoment, after: bool, step: int = step) -> None:
            seen.snapshots.setdefault((group.name, MOMENTS[moment, after], step), []).append(meter.live_bytes)

        if isinstance(run, FsdpRun):
            run.communication_state.hook_callback = watch
        for batch in range(training.microbatches):
            run.replace_batch()
            if isinstance(run, FsdpRun):
                run.communication_state.reduces_gradients = (
                    fsdp.reduces_each_microbatch or batch == training.microbatches - 1
                )
            meter.restart()
            loss = run.forward()
            seen.bytes[Seen(step, batch, "forward")], seen.bytes[Seen(step, batch, "live")] = (
                meter.peak_bytes,
                meter.live_bytes,
            )
            meter.restart()
            run.backward(loss)
            seen.bytes[Seen(step, batch, "backward")] = meter.peak_bytes
            del loss
            seen.bytes[Seen(step, batch, "after")] = meter.live_bytes
        meter.restart()
        run.update()
        seen.bytes[Seen(step, 0, "step")] = meter.peak_bytes
        run.zero_grad()
        seen.bytes[Seen(step, 0, "end")] = meter.live_bytes
    return seen


def differences(ours: Steps, theirs: Steps) -> dict[Any, Any]:
    """Figures of torch that the replay does not have: (replay, torch).

    The tracker notes the moment before a group's first pass of a step, and not that before the others.
    """
    own, found = ours.without_counts(), theirs.without_counts()
    out = {}
    for key, value in found.items():
        mine = own.get(key)
        if key[1] == MOMENTS["pre-forward", False] and mine is not None:
            mine = mine[: len(value)]
        if mine != value:
            out[key] = (mine, value)
    return out
