"""The layer-wise distributed Muon optimizer, in which each rank updates whole matrices.

Source: Megatron-LM, megatron/core/optimizer/layer_wise_optimizer.py, `_compute_per_buffer_param_layout` and
`_shard_params_ping_pong`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...algebra import round_up
from ...parallel.layout import Coordinates, Layout
from .kernels import Parameter
from .param_and_grad_buffer import (
    BUCKET_ALIGNMENT,
    BUCKET_ALIGNMENT_FOR_BUSBW,
    PARAMETER_ALIGNMENT,
    ElementRange,
    GradientBuffer,
    OptimizerUpdate,
    is_updated_by_muon,
    optimizer_updates,
    shard_index,
)
from .settings import MegatronSettings

LARGEST_SHARD_IMBALANCE = 1.3
"""Largest size of a shard relative to an even share, when shards are filled to even out the cost."""

FULL_BUCKET_FRACTION = 0.9
"""A bucket ends once it has this fraction of (largest tensor · ranks) elements."""


def make_unsplit_buffer(
    parameters: list[Parameter],
    is_expert: bool,
    settings: MegatronSettings,
    layout: Layout,
    bucket_elements: int | None,
) -> GradientBuffer:
    """Returns a buffer whose shards each contain whole tensors.

    The costliest tensors come first, each in the shard with the emptiest to compute.
    bucket_elements: elements after which a bucket ends; None for a single bucket.
    """
    shard_count = layout.expert_shard_count if is_expert else layout.shard_count
    bucket_divisor = math.lcm(
        shard_count, BUCKET_ALIGNMENT, BUCKET_ALIGNMENT_FOR_BUSBW if settings.ddp_pad_buckets_for_high_nccl_busbw else 1
    )
    shard_multiple = math.lcm(PARAMETER_ALIGNMENT, bucket_divisor // shard_count)
    buckets: list[ElementRange] = []
    tensor_ranges: dict[int, tuple[ElementRange, int]] = {}
    shard_costs = [0] * shard_count

    def assign_bucket_to_shards(bucket_parameters: list[Parameter]) -> None:
        """Assigns the tensors of one bucket to shards, and appends the bucket to the buffer's buckets."""
        element_limit = (
            sum(parameter.element_count for parameter in bucket_parameters) / shard_count * LARGEST_SHARD_IMBALANCE
        )
        shard_ends, tensor_placements = [0] * shard_count, list[tuple[Parameter, int, int]]()
        for parameter in sorted(bucket_parameters, key=lambda parameter: -_orthogonalization_cost(parameter)):
            fitting_shards = [
                shard_index
                for shard_index in range(shard_count)
                if round_up(shard_ends[shard_index], PARAMETER_ALIGNMENT) + parameter.element_count <= element_limit
            ]
            if fitting_shards:
                shard_index = min(fitting_shards, key=lambda shard_index: shard_costs[shard_index])
            else:
                shard_index = min(range(shard_count), key=lambda shard_index: shard_ends[shard_index])
            start_in_shard = round_up(shard_ends[shard_index], PARAMETER_ALIGNMENT)
            tensor_placements.append((parameter, shard_index, start_in_shard))
            shard_ends[shard_index] = start_in_shard + parameter.element_count
            shard_costs[shard_index] += _orthogonalization_cost(parameter)
        shard_width, bucket_start = round_up(max(shard_ends), shard_multiple), buckets[-1].end if buckets else 0
        for parameter, shard_index, start_in_shard in tensor_placements:
            start_in_buffer = bucket_start + shard_index * shard_width + start_in_shard
            tensor_ranges[id(parameter.tensor)] = (
                ElementRange(start_in_buffer, start_in_buffer + parameter.element_count),
                len(buckets),
            )
        buckets.append(ElementRange(bucket_start, bucket_start + shard_count * shard_width))

    pending_parameters: list[Parameter] = []
    shard_loads, largest_load = [0] * shard_count, 0
    for parameter in reversed(parameters):
        if bucket_elements is not None and pending_parameters:
            fits_in_padding = round_up(min(shard_loads), PARAMETER_ALIGNMENT) + parameter.element_count <= round_up(
                max(shard_loads), shard_multiple
            )
            is_bucket_full = sum(parameter.element_count for parameter in pending_parameters) >= max(
                bucket_elements, int(shard_count * largest_load * FULL_BUCKET_FRACTION)
            )
            if is_bucket_full and not fits_in_padding:
                assign_bucket_to_shards(pending_parameters)
                pending_parameters, shard_loads, largest_load = [], [0] * shard_count, 0
        emptiest_shard = min(range(shard_count), key=lambda i: shard_loads[i])
        shard_loads[emptiest_shard] = (
            round_up(shard_loads[emptiest_shard], PARAMETER_ALIGNMENT) + parameter.element_count
        )
        pending_parameters.append(parameter)
        largest_load = max(largest_load, parameter.element_count)
    assign_bucket_to_shards(pending_parameters)
    return GradientBuffer(
        parameters, is_expert, shard_count, buckets[-1].end, buckets, tensor_ranges, has_unsplit_parameters=True
    )


def _orthogonalization_cost(parameter: Parameter) -> int:
    """Returns the relative cost of orthogonalizing a matrix: long side · short side²."""
    long_side, short_side = max(parameter.tensor.shape), min(parameter.tensor.shape)
    muon_cost: int = long_side * short_side * short_side
    return muon_cost


def optimizer_updates_of_rank(
    buffers: Sequence[GradientBuffer], layout: Layout, rank_coordinates: Coordinates
) -> list[OptimizerUpdate]:
    """Returns this rank's optimizer updates: ranges of Adam's parameters, and whole matrices of the rank's shards."""
    unpacked_updates = list(
        optimizer_updates(
            [buffer for buffer in buffers if not buffer.has_unsplit_parameters], True, layout, rank_coordinates
        )
    )
    for buffer in buffers:
        if not buffer.has_unsplit_parameters:
            continue
        rank_shard = shard_index(buffer, layout, rank_coordinates)
        for parameter in buffer.parameters:
            (parameter_start, _), bucket_index = buffer.ranges_by_parameter[id(parameter.tensor)]
            bucket = buffer.buckets[bucket_index]
            if (parameter_start - bucket.start) // ((bucket.end - bucket.start) // buffer.shard_count) == rank_shard:
                unpacked_updates.append(OptimizerUpdate(parameter.element_count, 1))
    return unpacked_updates


def optimizer_updates_in_rank_order(
    buffers: Sequence[GradientBuffer], layout: Layout, rank_coordinates: Coordinates
) -> tuple[list[OptimizerUpdate], list[int]]:
    """Returns the parameters that this rank's optimizer updates, and the elements that a step all-gathers.

    Whole tensors are dealt out to the ranks, the smallest first, forth and back.
    """
    rank_parameters: list[Parameter] = []
    gathered_elements: list[int] = []
    for is_expert in (False, True):
        rank_count, rank_in_group = (
            (layout.expert_dp, rank_coordinates.edp)
            if is_expert
            else (layout.dp * layout.cp, rank_coordinates.dp * layout.cp + rank_coordinates.cp)
        )
        rank_order = [*range(rank_count), *reversed(range(rank_count))]
        parameters = [
            parameter for buffer in buffers if buffer.is_expert is is_expert for parameter in buffer.parameters
        ]
        ordered_parameters = sorted(
            sorted(parameters, key=lambda parameter: not is_updated_by_muon(parameter)),
            key=lambda parameter: parameter.element_count,
        )
        rank_parameters += [
            parameter
            for i, parameter in enumerate(ordered_parameters)
            if rank_order[i % len(rank_order)] == rank_in_group
        ]
        if rank_count > 1 and parameters:
            gathered_elements.append(sum(parameter.element_count for parameter in parameters))
    rank_parameters.sort(key=lambda parameter: not is_updated_by_muon(parameter))
    return [
        OptimizerUpdate(parameter.element_count, 1 if is_updated_by_muon(parameter) else 2)
        for parameter in rank_parameters
    ], gathered_elements
