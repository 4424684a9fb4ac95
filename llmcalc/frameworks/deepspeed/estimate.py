"""Estimates rank memory under DeepSpeed ZeRO without an allocator, for the layout search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES
from ..peak_estimate import PeakEstimate, bytes_per_parameter, estimate_with_torch_kernels
from ..transient_bytes import OptimizerStepBytes, StageParameters, TransientBytes, measure_optimizer_step
from .rank_memory import cast_adapters
from .replicated import REDUCED_AT_ONCE
from .settings import DeepSpeedSettings


def estimate(memory_estimate: Memory) -> PeakEstimate:
    """Returns the estimate of the memory of every rank of a model."""
    training_config = memory_estimate.training()
    transient = partial(
        transient_bytes,
        measure_optimizer_step(training_config, has_flat_parameters=True),
        DTYPES[training_config.dtype].bytes,
    )
    return estimate_with_torch_kernels(
        memory_estimate,
        bytes_per_parameter(memory_estimate, has_flat_parameters=True),
        cast_adapters(training_config),
        transient,
    )


def transient_bytes(
    step: OptimizerStepBytes, width: int, layout: Layout, stage_parameters: Sequence[StageParameters]
) -> TransientBytes:
    """Returns the temporary bytes of a rank. width: bytes per element of weights and gradients.

    In stage 0 copies of the gradients are reduced; in the others they are reduced in a buffer. In stages 1 and 2 it
    exists from the first gradient to the reduction, which in stage 2 follows each micro-batch. The reduced gradients
    are flattened, and a rank updates its shard of them.
    In stage 3 the buffer always exists, parameters are gathered up to a number of elements, and a rank updates one
    group of its shard after the other.
    """
    settings = DeepSpeedSettings(stage=layout.zero)
    step_bytes = step.rank_bytes(layout, stage_parameters, sharded=layout.zero >= 1)
    parameters = sum(stage.total for stage in stage_parameters)
    if layout.zero == 0:
        copies = width * min(REDUCED_AT_ONCE, parameters)
        return TransientBytes(gradient_reduction=copies, optimizer_step=step_bytes)
    bucket, shard = settings.size_in_elements("reduce_bucket_size"), parameters // layout.shards
    buffer = width * bucket
    if layout.zero == 3:
        group_share = min(1, settings.sub_group_size / max(1, shard))
        live_bytes = width * min(settings.stage3_max_live_parameters, parameters)
        flattened = (
            step.gradient_copy + step.gradient_element_bytes
        ) * shard  # gradients, and their copy, before the step
        layers = max(0, parameters - sum(stage.outside_layers for stage in stage_parameters))
        return TransientBytes(
            always=buffer,
            in_passes=live_bytes,
            outside_modules=-min(live_bytes, width * layers),  # the layers' parameters are released when they have run
            optimizer_step=round(group_share * max(step_bytes, flattened)),
        )
    whole_tensors = max(shard, *(stage.largest_tensor for stage in stage_parameters))  # a rank updates parts of them
    if layout.zero == 2:
        outside_shard = width * (whole_tensors - shard)
        return TransientBytes(
            from_first_gradient=buffer + outside_shard,
            later_micro_batches=outside_shard,
            backward_end=buffer + outside_shard,
            gradient_reduction=buffer + width * min(bucket, parameters) + outside_shard,
            optimizer_step=step_bytes - step.gradient_element_bytes * shard,
        )
    return TransientBytes(
        from_first_gradient=buffer,
        later_micro_batches=buffer,
        backward_end=buffer,
        gradient_reduction=buffer + width * whole_tensors,
        optimizer_step=step_bytes - step.gradient_element_bytes * parameters,
    )
