"""Estimates the memory of FSDP2 ranks without replaying an allocator, for the layout search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...device_memory.estimate import Memory
from ...parallel.layout import Layout
from ...simulator.tensor import DTYPES, FLOAT32
from ..peak_estimate import BytesPerParameter, PeakEstimate, bytes_per_parameter
from ..torch.pass_measurement import estimate_with_torch_kernels
from ..transient_bytes import OptimizerStepBytes, StageParameterCounts, TransientBytes, measure_optimizer_step
from .training import torchtitan_config_and_settings


def estimate_peaks(memory_estimate: Memory) -> PeakEstimate:
    """Returns estimates of the peak memory of FSDP2's ranks, which shard weights, gradients and optimizer states."""
    memory_use = memory_estimate.states
    parameter_count = memory_estimate.states.parameter_count.total
    training_config = memory_estimate.training()
    parameter_bytes = bytes_per_parameter(memory_estimate)
    if memory_use.has_master_weights:
        master_weight_bytes = memory_use.master_weights / parameter_count
        optimizer_state_bytes = 0 if memory_use.optimizer is None else memory_use.optimizer.bytes
        parameter_bytes = BytesPerParameter(
            master_weight_bytes,
            master_weight_bytes,
            (memory_use.weights + memory_use.gradients + optimizer_state_bytes) / parameter_count - master_weight_bytes,
        )
    compute_config, fsdp_settings = torchtitan_config_and_settings(memory_estimate.spec, training_config)
    shard_dtype = FLOAT32.name if training_config.has_master_weights else training_config.dtype
    step_bytes = measure_optimizer_step(replace(training_config, dtype=shard_dtype, has_master_weights=False))
    element_sizes = DTYPES[training_config.dtype].bytes, DTYPES[shard_dtype].bytes
    transient_function = partial(
        transient_bytes,
        step_bytes,
        *element_sizes,
        memory_use.trained_parameters / parameter_count,
        fsdp_settings.outer_groups == "separate",
        fsdp_settings.keeps_last_layer_gathered,
    )
    return estimate_with_torch_kernels(
        memory_estimate, parameter_bytes, compute_config, transient_function, pads_rows=True
    )


def transient_bytes(
    optimizer_step: OptimizerStepBytes,
    element_bytes: int,
    shard_element_bytes: int,
    trained_share: float,
    splits_head: bool,
    keeps_last_layer: bool,
    layout: Layout,
    stage_parameters: Sequence[StageParameterCounts],
    micro_batch_count: int,
) -> TransientBytes:
    """Returns a rank's temporary bytes at the peak: gathered parameters, gradient reduction, or the optimizer step.

    element_bytes: bytes of an element of gathered parameters and of gradients.
    shard_element_bytes: bytes of an element of a shard.
    trained_share: the share of the parameters that is trained.
    splits_head: whether embedding and head are separate groups.
    keeps_last_layer: `keeps_last_layer_gathered` of `FsdpSettings`.

    Layers are gathered one by one, and the next one with each. Modules outside the layers stay gathered, unless
    embedding and head, of one size, are gathered by themselves (`splits_head`). The last layer may stay gathered
    after its forward pass; if not, it is gathered again when the head's backward pass begins. A layer's gradients
    are whole until its backward pass ends, and the reduced ones, in fp32, exist until the next layer's ends. In a
    pipeline gradients stay whole, in fp32, until the last micro-batch of their stage, and parameters from one backward
    pass to the next forward pass. With no more micro-batches than ranks a stage is through with all of them before the
    rank's stage before it begins, so that the gradients of one stage are whole at a time.
    """
    from .pipeline import MAX_ACTIVE_STAGES

    step_bytes = optimizer_step.rank_bytes(layout, stage_parameters, is_sharded=True)
    outer_parameters = sum(stage.outside_layers for stage in stage_parameters)
    layer_elements = max(stage.largest_layer for stage in stage_parameters)
    fp32_bytes = FLOAT32.bytes
    if layout.pp == 1:
        largest_group_elements = outer_parameters // 2 if splits_head else outer_parameters
        gathered_bytes = element_bytes * (2 * layer_elements + (0 if splits_head else outer_parameters))
        reduce_bytes = trained_share * (element_bytes + fp32_bytes) * largest_group_elements
        head_gradient_bytes = trained_share * fp32_bytes * largest_group_elements if splits_head else 0
        bytes_before_head = (
            element_bytes * (layer_elements * (1 + keeps_last_layer) + 2 * largest_group_elements) - gathered_bytes
            if splits_head
            else 0
        )
        bytes_after_head = (
            round(reduce_bytes + head_gradient_bytes / layout.shard_count)
            + element_bytes * layer_elements
            - gathered_bytes
            if splits_head
            else 0
        )
        return TransientBytes(
            during_passes=gathered_bytes,
            around_loss=element_bytes * (layer_elements * keeps_last_layer + largest_group_elements) - gathered_bytes,
            outside_layers=element_bytes * (layer_elements + largest_group_elements) - gathered_bytes,
            before_head=max(element_bytes * layer_elements, bytes_before_head),
            after_head=bytes_after_head,
            forward_start=2
            * element_bytes
            * (largest_group_elements if splits_head else outer_parameters + layer_elements),
            in_layer_backward=round(trained_share * element_bytes * layer_elements),
            from_previous_layer=round(trained_share * fp32_bytes * layer_elements),
            from_head=round(head_gradient_bytes),
            gradient_reduction=round(max(element_bytes * largest_group_elements * (1 + trained_share), reduce_bytes)),
            optimizer_step=step_bytes,
        )
    totals_by_stage = [stage.total for stage in stage_parameters]
    parameter_count = sum(totals_by_stage)
    gathered_bytes = element_bytes * (outer_parameters + 2 * layer_elements)
    unsharded_bytes = round(element_bytes * parameter_count * min(1, MAX_ACTIVE_STAGES / layout.vpp))
    unsharded_gradients = max(totals_by_stage) if micro_batch_count <= layout.pp else parameter_count
    gradient_bytes = round(
        trained_share * unsharded_gradients * (fp32_bytes - shard_element_bytes / layout.shard_count)
    )
    reduced_gradient_bytes = round(
        trained_share * outer_parameters * (fp32_bytes + shard_element_bytes / layout.shard_count)
    )
    return TransientBytes(
        during_passes=gradient_bytes + (gathered_bytes if layout.reshard else unsharded_bytes),
        backward_end=gradient_bytes + unsharded_bytes,
        gradient_reduction=gradient_bytes + unsharded_bytes - element_bytes * outer_parameters + reduced_gradient_bytes,
        optimizer_step=step_bytes,
    )
