"""What a rank of a layout needs, without an allocator: what a micro-batch keeps in a stage, and the most of each pass.

A stage of many equal layers is measured with a few, since bytes are linear in their number (`fold`); stages that only
differ in it, and layouts that only differ in how experts or replicas are divided, share a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple, TypeAlias

from ..algebra import times
from ..costs.params import total_of
from ..kernels.lowering import in_order, pattern
from ..kernels.meter import Meter
from ..layouts.asked import Framework
from ..layouts.rank import rank_program
from ..layouts.schedules import Pipeline, pipeline
from ..model import ModelSpec
from ..ops import ExpertLinear
from ..run.layout import Layout, Stage, stages
from .fold import FEW
from .memory import Memory
from .pipeline import Chunk
from .training import Training


class Passes(NamedTuple):
    """Bytes of a micro-batch in a stage. saved: between its passes. forward, backward: the most beside what stays."""

    saved: int
    forward: int
    backward: int

    def grown(self, more: Passes, times: int) -> Passes:
        """With `times` more layers than this has; `more` has one more."""
        return Passes(*(a + times * (b - a) for a, b in zip(self, more, strict=True)))


class Bytes(NamedTuple):
    """Bytes of each parameter: of the weights, the gradients and the optimizer."""

    weights: float
    gradients: float
    optimizer: float

    @staticmethod
    def of(one: Memory, framework: Framework) -> Bytes:
        """Those of a framework: Megatron's are bf16, and fp32 for main gradients, the master copy and Adam's states."""
        if framework == "megatron":
            return Bytes(2, 4, 12)
        use, n = one.states, one.states.count.total
        states = (use.optimizer.bytes if use.optimizer is not None else 0) + use.master_weights
        return Bytes(use.weights / n, use.gradients / n, states / n)


Measure: TypeAlias = Callable[[Layout, Stage, int | None], Passes]
"""What a micro-batch takes in a stage of a layout. The number: repeats of the pattern of its layers, None for all."""


@dataclass
class Walk:
    """Walks the ranks of layouts of one model.

    each: bytes of each parameter. measure: how its passes are measured. include: optional parts that it has.
    beside: what each rank holds beside, such as workspaces.
    """

    spec: ModelSpec
    each: Bytes
    measure: Measure
    include: frozenset[str] = frozenset()
    beside: int = 0
    _passes: dict[tuple[object, ...], Passes] = field(default_factory=dict)
    _elements: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)

    @cached_property
    def layers(self) -> int:
        return sum(stack.num_hidden_layers for _, stack in self.spec.stacks())

    @cached_property
    def kinds(self) -> list[object]:
        """The kind of each layer."""
        scopes = [item for item in self.spec.program().root.items if getattr(item, "name", "") == "layers"]
        return list(in_order(scopes))  # type: ignore[arg-type]

    def needed(self, layout: Layout, micro_batches: int) -> int:
        """The bytes of the rank that needs most."""
        order = pipeline(layout, min(micro_batches, 2 * layout.pp * layout.vpp + layout.pp))
        own: dict[int, list[Stage]] = {}
        for stage in stages(layout, self.layers):
            own.setdefault(stage.rank, []).append(stage)
        return max(self._rank(layout, order, rank, of) for rank, of in own.items())

    def _rank(self, layout: Layout, order: Pipeline, rank: int, own: list[Stage]) -> int:
        passes = [self.passes(layout, stage) for stage in own]
        most, flying = order.fullest(rank, [one.saved for one in passes])
        last = max(
            max(one.forward, one.backward) - one.saved for one, count in zip(passes, flying.whole, strict=True) if count
        )
        return sum(self.static(layout, stage) for stage in own) + most + max(0, last) + self.beside

    def static(self, layout: Layout, stage: Stage) -> int:
        """Bytes of weights, gradients and optimizer states of a stage."""
        dense, experts = self.elements(layout, stage)
        weights, gradients, optimizer = self.each
        total = 0.0
        for n, shards in ((dense, layout.shards), (experts, layout.expert_shards)):
            total += n * weights / (shards if layout.zero == 3 else 1)
            total += n * gradients / (shards if layout.zero >= 2 else 1)
            total += n * optimizer / (shards if layout.zero >= 1 else 1)
        return round(total)

    def elements(self, layout: Layout, stage: Stage) -> tuple[int, int]:
        """Parameters of a stage: those that tensor parallelism divides, or none does, and those of experts."""
        key = (layout.tp, layout.ep, layout.expert_tp, self._kinds_of(stage), stage.first, stage.last)
        if key not in self._elements:
            tree = rank_program(self.spec, layout, 0, stage).node()
            total = tree.total(total_of, include=self.include)
            experts = sum(
                times(place.own(total_of), place.times)
                for place in tree.walk()
                if isinstance(place.node.op, ExpertLinear) and (not place.optional or place.optional in self.include)
            )
            self._elements[key] = total - experts, experts
        return self._elements[key]

    def _kinds_of(self, stage: Stage) -> tuple[object, ...]:
        """The kinds of a stage's layers, as runs of equal ones."""
        runs: list[list[int]] = []
        for i in stage.layers:
            kind = id(self.kinds[i])
            if runs and runs[-1][0] == kind:
                runs[-1][1] += 1
            else:
                runs.append([kind, 1])
        return tuple(map(tuple, runs))

    def passes(self, layout: Layout, stage: Stage) -> Passes:
        """Passes of a micro-batch through a stage."""
        key = (layout.tp, layout.cp, layout.sequence_parallel, self._kinds_of(stage), stage.first, stage.last)
        if key not in self._passes:
            alone = replace(layout, dp=layout.ep * layout.expert_tp * layout.dp, hsdp_replicas=1, ep=1, etp=1)
            repeats = pattern([self.kinds[i] for i in stage.layers]).repeats
            if repeats <= FEW + 1:
                self._passes[key] = self.measure(alone, stage, None)
            else:
                few, more = (self.measure(alone, stage, n) for n in (FEW, FEW + 1))
                self._passes[key] = few.grown(more, repeats - FEW)
        return self._passes[key]


def measure_of(one: Memory, framework: Framework) -> Measure:
    """How the passes of a framework's kernels are measured."""
    if framework == "megatron":
        from .megatron.walk import measured

        return partial(measured, one)
    return torch_passes(one.spec, one.settings.training(one.states, one.states.count.include))


def torch_passes(spec: ModelSpec, how: Training) -> Measure:
    """Measures passes of torch's own kernels."""

    def measured(layout: Layout, stage: Stage, repeats: int | None) -> Passes:
        meter = Meter()
        chunk = Chunk(spec, how, layout, 0, stage, meter)
        chunk.lowering.run_only = {} if repeats is None else {0: repeats}
        chunk.set_up()
        for _ in range(2):  # the second time gradients are there already
            before = meter.now
            meter.restart()
            flight = chunk.forward_of()
            saved, forward = meter.now - before, meter.peak - before
            meter.restart()
            chunk.backward_of(flight)
            backward = meter.peak - before
            del flight
        return Passes(saved, forward, backward)

    return measured
