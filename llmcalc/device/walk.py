"""What a rank of a layout needs, without an allocator: what a micro-batch keeps in a stage, and the most of each pass.

A stage of many equal layers is measured with a few, since bytes are linear in their number (`fold`); stages that only
differ in it, and layouts that only differ in how experts or replicas are divided, share a measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..algebra import times
from ..costs.params import total_of
from ..kernels.lowering import in_order, pattern
from ..kernels.meter import Meter
from ..layouts.rank import rank_program
from ..layouts.schedules import Pipeline, pipeline
from ..model import ModelSpec
from ..ops import ExpertLinear
from ..run.layout import Layout, Stage, stages
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


@dataclass
class Walk:
    """Walks the ranks of layouts of one model.

    spec, how: the model and how it is trained. each: bytes of each parameter.
    """

    spec: ModelSpec
    how: Training
    each: Bytes
    passes: Callable[[Walk, Layout, Stage], Passes] = field(
        default=lambda walk, layout, stage: walk.measured(layout, stage)
    )
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
        passes = [self.passes(self, layout, stage) for stage in own]
        most, flying = order.fullest(rank, [one.saved for one in passes])
        last = max(
            max(one.forward, one.backward) - one.saved for one, count in zip(passes, flying.whole, strict=True) if count
        )
        return sum(self.static(layout, stage) for stage in own) + most + max(0, last)

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
            total = tree.total(total_of, include=self.how.include)
            experts = sum(
                times(place.own(total_of), place.times)
                for place in tree.walk()
                if isinstance(place.node.op, ExpertLinear) and (not place.optional or place.optional in self.how.include)
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

    def measured(self, layout: Layout, stage: Stage) -> Passes:
        """Passes of torch's kernels through a stage."""
        alone = replace(layout, dp=layout.ep * layout.expert_tp, zero=0, hsdp_replicas=1)
        key = (layout.tp, layout.cp, layout.sequence_parallel, self._kinds_of(stage), stage.first, stage.last)
        if key not in self._passes:
            first, period, repeats = pattern([self.kinds[i] for i in stage.layers])  # type: ignore[misc]
            del first, period
            self._passes[key] = self._run(alone, stage) if repeats <= 4 else self._grown(alone, stage, repeats)
        return self._passes[key]

    def _grown(self, layout: Layout, stage: Stage, repeats: int) -> Passes:
        few = self._run(layout, stage, 3)
        return few.grown(self._run(layout, stage, 4), repeats - 3)

    def _run(self, layout: Layout, stage: Stage, repeats: int | None = None) -> Passes:
        meter = Meter()
        chunk = Chunk(self.spec, self.how, layout, 0, stage, meter)
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
