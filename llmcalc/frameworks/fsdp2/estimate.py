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
    """The peak estimate of a model's ranks. The shards are the master weights, and gradients are as wide as they."""
    states, parameters, training = memory.states, memory.states.count.total, memory.training()
    bytes_per = bytes_per_parameter(memory)
    if states.has_master:
        shard = states.master_weights / parameters
        optimizer_bytes = 0 if states.optimizer is None else states.optimizer.bytes
        total = (states.weights + states.gradients + optimizer_bytes) / parameters
        bytes_per = BytesPerParameter(shard, shard, total - shard)
    training, fsdp = torchtitan_training(memory.spec, training)
    shard_dtype = FLOAT32.name if training.master else training.dtype
    step = step_of(replace(training, dtype=shard_dtype, master=False))
    widths = DTYPES[training.dtype].bytes, DTYPES[shard_dtype].bytes
    trained_share = states.trained / parameters
    transient = partial(transient_bytes, step, *widths, trained_share, fsdp.splits, fsdp.keeps_last)
    return estimate_with_torch_kernels(memory, bytes_per, training, transient, pads=True)


def transient_bytes(
    step: Step,
    width: int,
    shard_width: int,
    trained: float,
    splits: bool,
    keeps_last: bool,
    layout: Layout,
    stages: Sequence[Elements],
) -> Around:
    """The bytes of a rank in addition to shards and activations.

    width: bytes per gathered element.
    shard_width: bytes per element of a shard.
    trained: the share of the parameters that is trained.
    splits, keeps_last: as in `Fsdp`.
    stages: the parameters of the rank's stages.
    """
    optimizer_step = step.bytes(layout, stages, divided=True)
    root = sum(stage.root for stage in stages)
    layer = max(stage.layer for stage in stages)
    if layout.pp == 1:
        return _single_stage_bytes(layout, width, trained, splits, keeps_last, root, layer)._replace(
            step=optimizer_step
        )
    whole = sum(stage.dense + stage.experts for stage in stages)
    return _pipeline_bytes(layout, width, shard_width, trained, whole, root, layer)._replace(step=optimizer_step)


def _single_stage_bytes(
    layout: Layout, width: int, trained: float, splits: bool, keeps_last: bool, root: int, layer: int
) -> Around:
    """The bytes without a pipeline, where a rank gathers one layer and the next one at a time.

    root: elements outside of layers. With `splits` they are two groups of one size, embedding and head; otherwise they
        stay gathered.
    layer: elements of the largest layer.

    The last layer may stay gathered after its forward pass; otherwise it is gathered again when the head's backward
    pass begins. A layer's gradients are whole until its backward pass ends. Their reduction in fp32 ends with the
    backward pass of the next layer.
    """
    group = root // 2 if splits else root
    passes = width * (2 * layer + (0 if splits else root))
    head_reduction = trained * FLOAT32.bytes * group if splits else 0
    root_reduction = trained * (width + FLOAT32.bytes) * group
    between_layers_and_head, between_head_and_layers = width * layer, 0
    if splits:
        between_layers_and_head = max(width * layer, width * (layer * (1 + keeps_last) + 2 * group) - passes)
        between_head_and_layers = round(root_reduction + head_reduction / layout.shards) + width * layer - passes
    return Around(
        passes=passes,
        loss=width * (layer * keeps_last + group) - passes,
        outside=width * (layer + group) - passes,
        gathers=between_layers_and_head,
        sums=between_head_and_layers,
        begin=2 * width * (group if splits else root + layer),
        layer=round(trained * width * layer),
        before=round(trained * FLOAT32.bytes * layer),
        last=round(head_reduction),
        end=round(max(width * group * (1 + trained), root_reduction)),
    )


def _pipeline_bytes(
    layout: Layout, width: int, shard_width: int, trained: float, whole: int, root: int, layer: int
) -> Around:
    """The bytes in a pipeline, which keeps whole gradients in fp32 until the last micro-batch.

    Without resharding parameters stay gathered from a backward pass to the next forward pass.

    whole: elements of all stages. root: elements outside of layers. layer: elements of the largest layer.
    """
    from .pipeline import ACTIVE

    gathered = width * (root + 2 * layer)
    active_stages = round(width * whole * min(1, ACTIVE / layout.vpp))
    gradients = round(trained * whole * (FLOAT32.bytes - shard_width / layout.shards))
    root_reduction = round(trained * root * (FLOAT32.bytes + shard_width / layout.shards))
    return Around(
        passes=gradients + (gathered if layout.reshard else active_stages),
        after=gradients + active_stages,
        end=gradients + active_stages - width * root + root_reduction,
    )
