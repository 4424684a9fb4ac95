"""How much memory each rank of a layout takes, and which takes the most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..components.evidence import evidence_of_parts
from ..device_memory.cuda_runtime import Runtime
from ..device_memory.device_memory import DeviceMemory, memory_with_evidence
from ..device_memory.estimate import Memory
from ..device_memory.settings import Settings
from ..device_memory.simulated_run import kernel_choices
from ..errors import InputError
from ..evidence import Evidence
from ..model import ModelSpec
from ..parallel.layout import Layout
from ..parallel.messages import Message, rank_messages
from ..units import DTYPE_BITS
from ..workload.execution import AttentionImplementation
from .framework import Framework, RunOnRanks
from .inference_rank import check_serving, rank_memory, rank_of
from .nccl import with_nccl
from .registry import framework as framework_named


@dataclass(frozen=True)
class RankMemory:
    """What one rank holds. stage: where it stands in the pipeline."""

    rank: int
    stage: int
    device: DeviceMemory


@dataclass(frozen=True)
class Cluster:
    """The memory of a model on many devices. run: the model over devices. framework: whose kernels and buffers."""

    run: RunOnRanks
    framework: Framework
    _replayed: dict[tuple[int, Runtime], RankMemory] = field(default_factory=dict, repr=False, compare=False)

    @staticmethod
    def of(
        memory: Memory, layout: Layout, framework: Framework | str, version: str = "", own_settings: Any = None
    ) -> Cluster:
        """The memory of a model on a layout. framework: a record, or its name. The others are as of `RunOnRanks`."""
        record = framework if isinstance(framework, Framework) else framework_named(framework)
        return Cluster(RunOnRanks(memory, layout, version, own_settings), record)

    @property
    def memory(self) -> Memory:
        return self.run.memory

    @property
    def layout(self) -> Layout:
        return self.run.layout

    @property
    def version(self) -> str:
        return self.run.version

    @property
    def own(self) -> Any:
        return self.run.own_settings

    @property
    def spec(self) -> ModelSpec:
        return self.memory.spec

    @property
    def settings(self) -> Settings:
        return self.memory.settings

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
        return tuple(self.rank_model(rank, runtime) for rank in self.ranks)

    def rank_model(self, rank: int, runtime: Runtime) -> RankMemory:
        """What one rank holds; it is replayed once."""
        if (rank, runtime) not in self._replayed:
            self._replayed[rank, runtime] = self._replay(rank, runtime)
        return self._replayed[rank, runtime]

    def _replay(self, rank: int, runtime: Runtime) -> RankMemory:
        if self.trains:
            found = self.framework.rank_memory(self.run, rank, runtime)
        else:
            check_serving(self.layout, self.framework)
            found = rank_memory(rank_of(self.memory, self.layout, rank, runtime))
        found = with_nccl(found, self.layout, self.framework, runtime, self.settings.torch or "")
        return RankMemory(rank, self.layout.coordinates(rank).pp, memory_with_evidence(found, self.evidence))

    @cached_property
    def evidence(self) -> list[Evidence]:
        """The parts, kernels and settings of the run, with the witness of each by itself and under the framework."""
        use = self.memory.states
        record = self.framework.evidence_for(self.layout, self.trains)
        optimizer = None if use.optimizer is None else use.optimizer.name
        found = record.run(evidence_of_parts(self.spec, use.count.include), optimizer)
        return found if record.own_kernels else [*found, *self.memory.evidence(self.attention)]

    @property
    def by_rank(self) -> tuple[RankMemory, ...]:
        return self.on(self.memory.runtime)

    @property
    def device_rank(self) -> RankMemory:
        """The rank that needs the most device memory."""
        return largest_need(self.by_rank)

    @property
    def peak_rank(self) -> RankMemory:
        """The rank whose tensors' blocks take the most: one that needs less may have fewer free blocks beside them."""
        return max(self.by_rank, key=lambda rank: (rank.device.peak_bytes, -rank.rank))

    @cached_property
    def reserved_band(self) -> tuple[int, int] | None:
        """What the allocator of the rank that takes the most reserves with segments, and with expandable ones.

        None where the setting is known.
        """
        if self.settings.allocator is not None:
            return None
        grown = self.rank_model(self.device_rank.rank, replace(self.memory.runtime, expandable=True))
        return self.device_rank.device.reserved_bytes, grown.device.reserved_bytes

    @property
    def attention(self) -> AttentionImplementation:
        """The attention implementation."""
        if self.trains:
            return attention_of(self.memory, self.framework)
        return rank_of(self.memory, self.layout, 0, self.memory.runtime).attention

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step."""
        own = getattr(self.own, "microbatches", None)
        return own or self.settings.num_microbatches or 1

    @cached_property
    def messages(self) -> list[Message] | None:
        """The messages in a training step of the rank that takes the most; None where they are not modelled."""
        if not self.trains:
            return None
        try:
            return self.messages_of(self.device_rank.rank)
        except InputError:
            return None

    def messages_of(self, rank: int) -> list[Message]:
        """The messages of a rank in a step. Raises `InputError` for what is not modelled."""
        if self.framework.own_messages is not None:
            messages = self.framework.own_messages(self.run, rank)
            if messages is not None:
                return messages
        gradients, use = self.framework.gradient_rules(), self.memory.states
        return rank_messages(
            self.spec,
            self.layout,
            use.workload,
            gradients,
            self.micro_batches,
            rank,
            width=DTYPE_BITS[use.dtype] // 8,
            include=use.count.include,
            recompute=self.settings.recomputed(),
        )


def attention_of(memory: Memory, framework: Framework) -> AttentionImplementation:
    """The attention implementation that runs: as asked, else the framework's own."""
    given = memory.settings.attn_implementation
    return given or framework.attention or kernel_choices(memory.settings).attention


def largest_need(ranks: Sequence[RankMemory]) -> RankMemory:
    """The rank that needs the most device memory; of equal ones the first."""
    return max(ranks, key=lambda rank: (rank.device.device_bytes, -rank.rank))
