"""The memory of ranks under FSDP2, without an allocator, for plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES, FLOAT32
from ..peak_estimate import BytesPerParameter, PeakEstimate, bytes_per_parameter, estimate_with_torch_kernels
from ..transient_bytes import Around, Elements, Step, step_of
from .training import torchtitan_training


def estimate(memory: Memory) -> PeakEstimate:
    """The estimate of a model's ranks. The shards are the master weights, and gradients are as wide."""
    use, n, training = memory.states, memory.states.count.total, memory.training()
    each = bytes_per_parameter(memory)
    if use.has_master:
        wide, states = use.master_weights / n, 0 if use.optimizer is None else use.optimizer.bytes
        each = BytesPerParameter(wide, wide, (use.weights + use.gradients + states) / n - wide)
    computing, calls = torchtitan_training(memory.spec, training)
    shards = FLOAT32.name if training.master else training.dtype
    step = step_of(replace(training, dtype=shards, master=False))
    widths = DTYPES[training.dtype].bytes, DTYPES[shards].bytes
    transient = partial(transient_bytes, step, *widths, use.trained / n, calls.splits, calls.keeps_last)
    return estimate_with_torch_kernels(memory, each, computing, transient, pads=True)


def transient_bytes(
    step: Step,
    width: int,
    shard: int,
    trained: float,
    splits: bool,
    keeps_last: bool,
    layout: Layout,
    own: Sequence[Elements],
) -> Around:
    """The bytes that a rank has beside its passes.

    shard: bytes of an element that is kept. trained: the share of the parameters that is trained. splits, keeps_last:
        as of `Fsdp`.

    A rank's layers are gathered one by one, and the next one with each; what is in no layer stays whole, or embedding
    and head, of one size, are gathered by themselves. The last layer may stay whole after its forward pass; if not, it
    is gathered again when the head's backward pass begins. A layer's
    gradients are whole until its backward pass ends, and what is summed, in fp32, until the next one's does. In a
    pipeline gradients stay whole, in fp32, until the last micro-batch, and parameters from one backward pass to the
    next forward pass.
    """
    from .pipeline import ACTIVE

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
