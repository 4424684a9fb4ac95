"""Estimates each rank's memory under DeepSpeed ZeRO without replaying an allocator, for the layout search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES
from ..peak_estimate import PeakEstimate, bytes_per_parameter
from ..torch.pass_measurement import estimate_with_torch_kernels
from ..transient_bytes import OptimizerStepBytes, StageParameterCounts, TransientBytes, measure_optimizer_step
from .rank_memory import with_cast_adapters
from .replicated import BUCKET_ELEMENTS
from .settings import DeepSpeedSettings


def estimate_peaks(memory_estimate: Memory) -> PeakEstimate:
    """Returns an estimate of the peak memory of every rank."""
    training_config = memory_estimate.training()
    transient_function = partial(
        transient_bytes,
        measure_optimizer_step(training_config, has_flat_parameters=True),
        DTYPES[training_config.dtype].bytes,
    )
    return estimate_with_torch_kernels(
        memory_estimate,
        bytes_per_parameter(memory_estimate, has_flat_parameters=True),
        with_cast_adapters(training_config),
        transient_function,
    )


def transient_bytes(
    optimizer_step: OptimizerStepBytes,
    element_bytes: int,
    layout: Layout,
    stage_parameters: Sequence[StageParameterCounts],
    micro_batch_count: int,
) -> TransientBytes:
    """Returns a rank's temporary bytes at the peak. element_bytes: bytes per element of weights and gradients.

    In stage 0 copies of the gradients are reduced; in the others they are reduced in a buffer. In stages 1 and 2 it
    exists from the first gradient to the reduction, which in stage 2 follows each micro-batch. The reduced gradients
    are flattened, and a rank updates its shard of them.
    In stage 3 the buffer always exists, parameters are gathered up to a number of elements, and a rank updates one
    group of its shard after the other.
    """
    settings = DeepSpeedSettings(stage=layout.zero)
    step_bytes = optimizer_step.rank_bytes(layout, stage_parameters, is_sharded=layout.zero >= 1)
    parameter_count = sum(stage.total for stage in stage_parameters)
    if layout.zero == 0:
        flat_copy_bytes = element_bytes * min(BUCKET_ELEMENTS, parameter_count)
        return TransientBytes(gradient_reduction=flat_copy_bytes, optimizer_step=step_bytes)
    bucket_elements, shard_size = settings.size_in_elements("reduce_bucket_size"), parameter_count // layout.shard_count
    buffer_bytes = element_bytes * bucket_elements
    if layout.zero == 3:
        sub_group_share = min(1, settings.sub_group_size / max(1, shard_size))
        live_bytes = element_bytes * min(settings.stage3_max_live_parameters, parameter_count)
        flat_gradient_bytes = (
            optimizer_step.gradient_copy_bytes + optimizer_step.gradient_element_bytes
        ) * shard_size  # gradients, and their copy, before the step
        layer_elements = max(0, parameter_count - sum(stage.outside_layers for stage in stage_parameters))
        return TransientBytes(
            whole_step=buffer_bytes,
            during_passes=live_bytes,
            outside_modules=-min(
                live_bytes, element_bytes * layer_elements
            ),  # the layers' parameters are released when they have run
            optimizer_step=round(sub_group_share * max(step_bytes, flat_gradient_bytes)),
        )
    # a rank updates parts of them
    gradient_elements = max(shard_size, *(stage.largest_tensor for stage in stage_parameters))
    if layout.zero == 2:
        unsharded_gradient_bytes = element_bytes * (gradient_elements - shard_size)
        return TransientBytes(
            from_first_gradient=buffer_bytes + unsharded_gradient_bytes,
            later_micro_batches=unsharded_gradient_bytes,
            backward_end=buffer_bytes + unsharded_gradient_bytes,
            gradient_reduction=buffer_bytes
            + element_bytes * min(bucket_elements, parameter_count)
            + unsharded_gradient_bytes,
            optimizer_step=step_bytes - optimizer_step.gradient_element_bytes * shard_size,
        )
    return TransientBytes(
        from_first_gradient=buffer_bytes,
        later_micro_batches=buffer_bytes,
        backward_end=buffer_bytes,
        gradient_reduction=buffer_bytes + element_bytes * gradient_elements,
        optimizer_step=step_bytes - optimizer_step.gradient_element_bytes * parameter_count,
    )
