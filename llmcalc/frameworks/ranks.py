"""How much memory each rank of a layout takes, and which takes the most."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeAlias

from ..components.evidence import evidence_of_parts
from ..costs.optimizers import ALIASES
from ..device_memory.cuda_runtime import Runtime
from ..device_memory.device_memory import TORCH, DeviceMemory, Term, known_memory, summed
from ..device_memory.estimate import Memory
from ..device_memory.settings import Settings
from ..device_memory.simulated_run import kernel_choices
from ..errors import InputError
from ..evidence import Evidence, FrameworkEvidence
from ..model import ModelSpec
from ..parallel.communication import Traffic, communication
from ..parallel.layout import Layout
from ..parallel.layout_request import Framework, dated
from ..simulator.layer_loops import loops
from ..units import DTYPE_BITS
from ..workload.execution import AttentionImplementation
from .fsdp2.settings import TitanSettings
from .inference_rank import rank_memory, rank_of
from .nccl import with_nccl
from .torch.pipeline import check_torch
from .torch.pipeline_replay import played_rank

if TYPE_CHECKING:
    from .megatron.settings import MegatronSettings


@dataclass(frozen=True)
class RankMemory:
    """What one rank holds. stage: where it stands in the pipeline."""

    rank: int
    stage: int
    device: DeviceMemory


@dataclass(frozen=True)
class Cluster:
    """The memory of a model on many devices.

    one: the model and how it runs. framework: whose kernels and buffers. version: as of which date or tag; empty for
    the newest known.
    """

    one: Memory
    layout: Layout
    framework: Framework
    version: str = ""
    own: Any = None
    _found: dict[Runtime, tuple[RankMemory, ...]] = field(default_factory=dict, repr=False, compare=False)
    _shared: dict[Runtime, dict[Any, Any]] = field(default_factory=dict, repr=False, compare=False)
    _settings: dict[Runtime, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def spec(self) -> ModelSpec:
        return self.one.spec

    @property
    def settings(self) -> Settings:
        return self.one.settings

    @property
    def trains(self) -> bool:
        """Whether the run is training."""
        return self.settings.phase == "training"

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """One rank of every stage of the pipeline, and the last of all."""
        return tuple(sorted({*(self.layout.rank(pp=stage) for stage in range(self.layout.pp)), self.layout.world - 1}))

    def on(self, runtime: Runtime) -> tuple[RankMemory, ...]:
        """What each of `ranks` holds on an accelerator with that runtime.

        Raises `InputError` for what the framework does not have or is not modelled.
        """
        if runtime not in self._found:
            self._found[runtime] = tuple(self.of_rank(rank, runtime) for rank in self.ranks)
        return self._found[runtime]

    def shared(self, runtime: Runtime) -> dict[Any, Any]:
        """What ranks on an accelerator with that runtime keep for others that do the same."""
        return self._shared.setdefault(runtime, {})

    def settings_on(self, runtime: Runtime, made: Callable[[], Any]) -> Any:
        """The framework's own settings of a run on an accelerator with that runtime, which are made once."""
        if runtime not in self._settings:
            self._settings[runtime] = made()
        return self._settings[runtime]

    def of_rank(self, rank: int, runtime: Runtime) -> RankMemory:
        """What one rank holds."""
        run = self.run.rank if self.trains else serving_rank
        found = with_nccl(run(self, rank, runtime), self.layout, self.framework, runtime, self.settings.torch or "")
        return RankMemory(rank, self.layout.at(rank).pp, known_memory(found, self.evidence))

    @property
    def run(self) -> FrameworkRun:
        """The framework's run. Raises `InputError` for one that is not modelled."""
        found = FRAMEWORKS.get(self.framework)
        if found is None:
            raise InputError(f"--framework {self.framework}: not modelled; expected one of {', '.join(FRAMEWORKS)}")
        return found

    @cached_property
    def evidence(self) -> list[Evidence]:
        """What the run uses, with the witness of each by itself and in runs of the framework."""
        use = self.one.states
        record = self.run.evidence_for(self.framework, self.layout, self.trains)
        optimizer = None if use.optimizer is None else ALIASES.get(use.optimizer.name, use.optimizer.name)
        found = record.run(evidence_of_parts(self.spec, use.count.include), optimizer)
        return found if record.own_kernels else [*found, *self.one.evidence(self.attention)]

    @property
    def by_rank(self) -> tuple[RankMemory, ...]:
        return self.on(self.one.runtime)

    @property
    def peak(self) -> RankMemory:
        """The rank that takes the most."""
        return worst(self.by_rank)

    @cached_property
    def reserved_band(self) -> tuple[int, int] | None:
        """What the allocator of the rank that takes the most reserves with segments, and with expandable ones.

        None where the setting is known.
        """
        if self.settings.allocator is not None:
            return None
        grown = self.of_rank(self.peak.rank, replace(self.one.runtime, expandable=True))
        return self.peak.device.reserved_bytes, grown.device.reserved_bytes

    @property
    def attention(self) -> AttentionImplementation:
        """The attention implementation."""
        if self.trains:
            return attention_of(self.one, self.framework)
        return rank_of(self.one, self.layout, 0, self.one.runtime, self.framework).attention

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        own = getattr(self.own, "microbatches", None)
        return own or self.settings.num_microbatches or 1

    @cached_property
    def communication(self) -> list[Traffic] | None:
        """What the rank that takes the most sends in a training step; None where that is not modelled."""
        if not self.trains:
            return None
        try:
            return self.sent(self.peak.rank)
        except InputError:
            return None

    def sent(self, rank: int) -> list[Traffic]:
        """What a rank sends in a step. Raises `InputError` for what is not modelled."""
        if self.framework == "fsdp2" and self.layout.dp * self.layout.tp == self.layout.world and self.layout.ep == 1:
            from .fsdp2.rank_memory import rank_traffic

            return rank_traffic(self.one, self.layout, rank, dated(self.version), _titan(self.own))
        use = self.one.states
        return communication(
            self.spec,
            self.layout,
            use.workload,
            self.micro_batches,
            self.framework,
            rank,
            width=DTYPE_BITS[use.dtype] // 8,
            include=use.count.include,
            recompute=self.settings.recomputed(),
        )


def attention_of(one: Memory, framework: Framework) -> AttentionImplementation:
    """The attention implementation that runs: as asked, else the framework's own."""
    given = one.settings.attn_implementation
    return given or ("flash" if framework == "megatron" else kernel_choices(one.settings).attention)


def worst(ranks: Sequence[RankMemory]) -> RankMemory:
    """The rank that takes the most; of equal ones the first."""
    return max(ranks, key=lambda one: (one.device.device_bytes, -one.rank))


def serving_rank(run: Cluster, rank: int, runtime: Runtime) -> DeviceMemory:
    """A rank that runs passes without gradients."""
    return rank_memory(rank_of(run.one, run.layout, rank, runtime, run.framework))


def torch_rank(run: Cluster, rank: int, runtime: Runtime) -> DeviceMemory:
    """A rank of torch's own kernels: products divided over ranks, a pipeline, replicas with DDP."""
    one = run.one
    how = one.training()
    check_torch(run.layout)
    shared = run.shared(runtime)
    found = played_rank(one.spec, how, run.layout, rank, runtime.expandable, runtime.workspace, shared)
    source = "torch/distributed/pipelining/stage.py, nn/parallel/distributed.py, replayed"
    known = Term("tensors", 0, "source", source, TORCH)
    if _titan(run.own).float8 is not None:
        from .fsdp2.rank_memory import IN_FLOAT8

        known = IN_FLOAT8
    return summed(found, runtime, loops(one.spec), known)


def megatron_settings(run: Cluster, runtime: Runtime) -> MegatronSettings:
    """Megatron-LM's arguments of a run on an accelerator with that runtime."""
    from .megatron.settings_from_options import settings_of

    def made() -> Any:
        own = run.own if run.own is not None else settings_of(run.one, run.layout, run.version, runtime.gpu)
        grows = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"} if runtime.expandable else {}
        return replace(own, gpu=runtime.gpu, env={**own.env, **grows})

    found: MegatronSettings = run.settings_on(runtime, made)
    return found


def megatron_rank(run: Cluster, rank: int, runtime: Runtime) -> DeviceMemory:
    """A rank of Megatron-LM."""
    from .megatron.rank_memory import rank_memory

    return rank_memory(run.spec, megatron_settings(run, runtime), rank, runtime.context, run.shared(runtime))


def deepspeed_rank(run: Cluster, rank: int, runtime: Runtime) -> DeviceMemory:
    """A rank under DeepSpeed's ZeRO."""
    from .deepspeed.rank_memory import rank_memory

    return rank_memory(run.one, run.layout, rank, runtime, run.own, run.version)


def fsdp2_rank(run: Cluster, rank: int, runtime: Runtime) -> DeviceMemory:
    """A rank of torch's `fully_shard`, as torchtitan calls it."""
    from .fsdp2.rank_memory import rank_memory

    return rank_memory(run.one, run.layout, rank, runtime, dated(run.version), _titan(run.own), run.shared(runtime))


def _titan(own: Any) -> TitanSettings:
    """What a torchtitan job says; of any other run nothing."""
    return own if isinstance(own, TitanSettings) else TitanSettings()


Ranked: TypeAlias = Callable[[Cluster, int, Runtime], DeviceMemory]
"""What one rank holds."""


@dataclass(frozen=True)
class FrameworkRun:
    """A framework whose ranks are replayed.

    rank: what one of its ranks holds. evidence: the module of this package whose function `evidence_for` (layout,
    whether it trains) → `FrameworkEvidence` says how its runs are known; without one they are untested.
    """

    rank: Ranked
    evidence: str = ""

    def evidence_for(self, name: str, layout: Layout, trains: bool) -> FrameworkEvidence:
        """How the runs of the framework in a layout are known. trains: whether the run is training."""
        if not self.evidence:
            return FrameworkEvidence(name)
        found: FrameworkEvidence = import_module(self.evidence, __package__).evidence_for(layout, trains)
        return found


FRAMEWORKS: dict[Framework, FrameworkRun] = {
    "torch": FrameworkRun(torch_rank, ".distributed_torch"),
    "fsdp2": FrameworkRun(fsdp2_rank, ".fsdp.evidence"),
    "megatron": FrameworkRun(megatron_rank, ".megatron.evidence"),
    "deepspeed": FrameworkRun(deepspeed_rank, ".deepspeed.evidence"),
}
"""Framework → its run."""
