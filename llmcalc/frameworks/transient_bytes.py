"""What a rank holds beside its passes, for a walk: what the optimizer's step takes for a moment, what is summed over
replicas, and parameters that are divided over ranks and gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from ..device_memory.optimizers.registry import optimizer
from ..device_memory.optimizers.run_step import run_step
from ..device_memory.optimizers.step import Trained
from ..device_memory.training import Training
from ..parallel.layout import Layout
from ..simulator.autograd import Graph
from ..simulator.meter import Meter
from ..simulator.tensor import DTYPES, FLOAT32, empty


class Elements(NamedTuple):
    """Parameters of a stage: those that tensor parallelism divides, or none does, and those of experts.

    root: of them, those in no layer. layer: of the largest layer. largest: of the largest tensor; inner: of the largest
    in a layer; matrix: of the largest in a layer that is not of experts. whole: by how many gradients have more than
    their weights (`Divided.looked_up`).
    """

    dense: int
    experts: int
    root: int = 0
    layer: int = 0
    largest: int = 0
    inner: int = 0
    matrix: int = 0
    whole: int = 0


class Around(NamedTuple):
    """Bytes that a rank holds beside its passes, and beside what each parameter takes.

    stays: all the time.
    passes: during both passes. Where it is less at a moment, that moment's field is negative.
    loss: around the loss.
    outside: in the backward pass, where no layer runs.
    root: of `outside`, where no module runs.
    gathers: between the layers' forward pass and that of the head.
    sums: between the head's backward pass and that of the layers.
    begin: when a forward pass begins.
    late: in a backward pass, from its first gradient on.
    again: in all passes but those of the first micro-batch.
    layer: in a layer's backward pass.
    before: in a layer's backward pass, left by the layer that ran before it.
    last: in the last layer's backward pass, left by the head.
    after: when a backward pass has ended.
    end: after the last backward pass of a step, when gradients are divided.
    step: for a moment in the optimizer's step.
    """

    stays: int = 0
    passes: int = 0
    loss: int = 0
    outside: int = 0
    root: int = 0
    gathers: int = 0
    sums: int = 0
    begin: int = 0
    late: int = 0
    again: int = 0
    layer: int = 0
    before: int = 0
    last: int = 0
    after: int = 0
    end: int = 0
    step: int = 0


Arounds: TypeAlias = Callable[[Layout, Sequence[Elements]], Around]
"""What the stages of one rank hold."""


def nothing(layout: Layout, own: Sequence[Elements]) -> Around:
    return Around()


class Step(NamedTuple):
    """Bytes that an optimizer's step takes for a moment: of each parameter, of each element of the largest tensor, and
    of the one beside it, whose turn may not be over.

    by_adamw: of each parameter that is no matrix in a layer, where matrices are updated apart (Muon); None where all
    are alike. copied: of `each`, those of the copy of each element of a gradient. kept: bytes of that element itself.
    """

    each: float = 0
    largest: float = 0
    beside: float = 0
    by_adamw: float | None = None
    copied: int = 0
    kept: int = 0

    def bytes(self, layout: Layout, own: Sequence[Elements], divided: bool) -> int:
        """Those of a rank. divided: whether ranks share out the step."""
        dense, experts = sum(one.dense for one in own), sum(one.experts for one in own)
        shards, expert_shards = (layout.shards, layout.expert_shards) if divided else (1, 1)
        each, whole = self.each * (dense / shards + experts / expert_shards), sum(one.whole for one in own)
        if self.by_adamw is None:
            turn = self.largest * max(one.largest for one in own) + self.beside * max(one.inner for one in own)
        else:
            others = sum(one.root for one in own) + experts
            turn = max((self.largest + self.beside) * max(one.matrix for one in own), self.by_adamw * others)
        return round(each + turn / shards + (self.copied + self.kept) * whole / shards)


SIDE = 1024
"""Rows and columns of the matrices on which an optimizer's step is measured."""


def step_of(training: Training, flat: bool = False) -> Step:
    """What the step of an optimizer takes, measured on one matrix, on two, as one may outlive its turn, and on three.

    flat: whether a rank's part of all parameters is one tensor, without rows.
    """
    if training.optimizer_in_backward or training.adapters is not None:  # little: one tensor, or adapters alone
        return Step()
    dtype, elements = DTYPES[training.dtype], SIDE * SIDE
    gradient_type = training.gradient_dtype or dtype
    has_copies = training.master and FLOAT32 not in (dtype, gradient_type)

    def taken(count: int, matrix: bool = not flat) -> int:
        meter = Meter()
        graph, shape = Graph(meter), (elements,) if flat else (SIDE, SIDE)
        trained = [Trained(empty(meter, shape, FLOAT32 if training.master else dtype), matrix) for _ in range(count)]
        gradients = [empty(meter, shape, gradient_type) for _ in trained]
        before = 0
        for _ in range(2):  # the second time states are there already
            before = meter.now
            meter.restart()
            for one, gradient in zip(trained, gradients, strict=True):
                one.gradient = empty(meter, shape, FLOAT32) if has_copies else gradient
            run_step(
                graph,
                training.optimizer,
                trained,
                training.implementation,
                training.momentum,
                training.state_dtype,
                training.torch,
            )
            for one in trained:
                one.gradient = None
        return meter.peak - before

    copied, kept = FLOAT32.bytes if has_copies else 0, gradient_type.bytes
    if flat:
        return Step(taken(1) / elements, copied=copied, kept=kept)
    one, two, three = (taken(count) / elements for count in (1, 2, 3))
    each = max(0.0, three - two)
    largest = max(0.0, one - each)
    beside, by_adamw = max(0.0, two - 2 * each - largest), None
    if optimizer(training.optimizer).by_matrix:
        by_adamw = max(0.0, taken(1, matrix=False) / elements - each)
    return Step(each, largest, beside, by_adamw, copied, kept)
