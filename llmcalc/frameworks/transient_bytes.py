"""What a rank holds beside its passes, for a walk: what the optimizer's step takes for a moment, what is summed over
replicas, and parameters that are divided over ranks and gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from ..costs.optimizers import ALIASES
from ..device_memory.optimizer_steps import Trained
from ..device_memory.optimizer_steps import step as optimizer_step
from ..device_memory.training import Training
from ..parallel.layout import Layout
from ..parallel.layout_request import Framework
from ..simulator.autograd import Graph
from ..simulator.meter import Meter
from ..simulator.tensor import DTYPES, FLOAT32, empty
from .deepspeed.settings import DeepSpeedSettings


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


def around_of(
    framework: Framework, how: Training, trained: float = 1, splits: bool = False, keeps_last: bool = True
) -> Arounds:
    """What a framework holds. FSDP2's shards are their own master weights.

    how: what its modules compute in. trained: the share of the parameters that is trained, all by default.
    splits, keeps_last: as of `Fsdp`, for FSDP2.
    """
    width = DTYPES[how.dtype].bytes
    if framework == "fsdp2":
        shards = FLOAT32.name if how.master else how.dtype
        step = step_of(replace(how, dtype=shards, master=False))
        return partial(_of_fsdp2, step, width, DTYPES[shards].bytes, trained, splits, keeps_last)
    if framework == "deepspeed":
        return partial(_of_deepspeed, step_of(how, flat=True), width)
    return partial(_of_torch, step_of(how), width * trained)


class Step(NamedTuple):
    """Bytes that an optimizer's step takes for a moment: of each parameter, of each element of the largest tensor, and
    of the one beside it, whose turn may not be over.

    by_adamw: of each parameter that is no matrix in a layer, where these are updated first (Muon); None where all are
    alike. copied: of `each`, those of the copy of each element of a gradient. kept: bytes of that element itself.
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


def step_of(how: Training, flat: bool = False) -> Step:
    """What the step of an optimizer takes, measured on one matrix, on two, as one may outlive its turn, and on three.

    flat: whether a rank's part of all parameters is one tensor, without rows.
    """
    if how.optimizer_in_backward or how.adapters is not None:  # little: one tensor, or adapters alone
        return Step()
    dtype, elements = DTYPES[how.dtype], SIDE * SIDE
    gradient_type = how.gradient_dtype or dtype
    has_copies = how.master and FLOAT32 not in (dtype, gradient_type)

    def taken(count: int, matrix: bool = not flat) -> int:
        meter = Meter()
        graph, shape = Graph(meter), (elements,) if flat else (SIDE, SIDE)
        trained = [Trained(empty(meter, shape, FLOAT32 if how.master else dtype), matrix) for _ in range(count)]
        gradients = [empty(meter, shape, gradient_type) for _ in trained]
        before = 0
        for _ in range(2):  # the second time states are there already
            before = meter.now
            meter.restart()
            for one, gradient in zip(trained, gradients, strict=True):
                one.gradient = empty(meter, shape, FLOAT32) if has_copies else gradient
            optimizer_step(graph, how.optimizer, trained, how.implementation, how.momentum, how.state_dtype, how.torch)
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
    if ALIASES.get(how.optimizer, how.optimizer) == "muon":
        by_adamw = max(0.0, taken(1, matrix=False) / elements - each)
    return Step(each, largest, beside, by_adamw, copied, kept)


def _of_torch(step: Step, each: float, layout: Layout, own: Sequence[Elements]) -> Around:
    """Replicas sum gradients in buckets of their own (c10d `Reducer`). each: bytes of them for each parameter."""
    buckets = round(each * sum(one.dense + one.experts for one in own)) if layout.dp > 1 else 0
    return Around(stays=buckets, step=step.bytes(layout, own, divided=False))


def _of_fsdp2(
    step: Step,
    width: int,
    shard: int,
    trained: float,
    splits: bool,
    keeps_last: bool,
    layout: Layout,
    own: Sequence[Elements],
) -> Around:
    """shard: bytes of an element that is kept. trained, splits, keeps_last: as of `around_of`.

    A rank's layers are gathered one by one, and the next one with each; what is in no layer stays whole, or embedding
    and head, of one size, are gathered by themselves. The last layer may stay whole after its forward pass; if not, it
    is gathered again when the head's backward pass begins. A layer's
    gradients are whole until its backward pass ends, and what is summed, in fp32, until the next one's does. In a
    pipeline gradients stay whole, in fp32, until the last micro-batch, and parameters from one backward pass to the
    next forward pass.
    """
    from .fsdp2.pipeline import ACTIVE

    taken, root, layer = (
        step.bytes(layout, own, divided=True),
        sum(one.root for one in own),
        max(one.layer for one in own),
    )
    gathered, wide = width * (root + 2 * layer), FLOAT32.bytes
    if layout.pp == 1:
        grown, summed = round(trained * width * layer), round(trained * wide * layer)
        alone = root // 2 if splits else root
        passes = width * (2 * layer + (0 if splits else root))
        sums, head = trained * (width + wide) * alone, trained * wide * alone if splits else 0
        return Around(
            passes=passes,
            loss=width * (layer * keeps_last + alone) - passes,
            outside=width * (layer + alone) - passes,
            gathers=max(width * layer, width * (layer * (1 + keeps_last) + 2 * alone) - passes if splits else 0),
            sums=round(sums + head / layout.shards) + width * layer - passes if splits else 0,
            begin=2 * width * (alone if splits else root + layer),
            layer=grown,
            before=summed,
            last=round(head),
            end=round(max(width * alone * (1 + trained), sums)),
            step=taken,
        )
    whole = sum(one.dense + one.experts for one in own)
    stays = round(width * whole * min(1, ACTIVE / layout.vpp))
    gradients = round(trained * whole * (wide - shard / layout.shards))
    summed = round(trained * root * (wide + shard / layout.shards))
    return Around(
        passes=gradients + (gathered if layout.reshard else stays),
        after=gradients + stays,
        end=gradients + stays - width * root + summed,
        step=taken,
    )


def _of_deepspeed(step: Step, width: int, layout: Layout, own: Sequence[Elements]) -> Around:
    """Gradients are summed in a buffer; in stage 3, which always has it, parameters are gathered up to a number of
    elements. In stages 1 and 2 it is there from the first gradient to the last sum, which in stage 2 each micro-batch
    has; what is summed is put side by side, and a rank steps with its own part alone, in stage 3 with a group of it.
    """
    settings, whole = DeepSpeedSettings(stage=layout.zero), sum(one.dense + one.experts for one in own)
    taken, most = step.bytes(layout, own, divided=layout.zero >= 1), settings.elements("reduce_bucket_size")
    if layout.zero == 0:
        return Around(step=taken)
    part, buffer = whole // layout.shards, width * most
    if layout.zero == 3:
        at_once = min(1, settings.sub_group_size / max(1, part))
        live = width * min(settings.stage3_max_live_parameters, whole)
        taken = max(taken, (step.copied + step.kept) * part)  # gradients are put side by side, and copied, before it
        released = width * max(0, whole - sum(one.root for one in own))  # the layers' parameters, when they have run
        return Around(stays=buffer, passes=live, root=-min(live, released), step=round(at_once * taken))
    tensors = max(part, *(one.largest for one in own))  # whole ones, of which a rank may step with a part
    if layout.zero == 2:
        more = width * (tensors - part)
        end = buffer + width * min(most, whole) + more
        return Around(late=buffer + more, again=more, after=buffer + more, end=end, step=taken - step.kept * part)
    return Around(late=buffer, again=buffer, after=buffer, end=buffer + width * tensors, step=taken - step.kept * whole)
