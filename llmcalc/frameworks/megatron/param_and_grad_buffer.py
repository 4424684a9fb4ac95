"""The gradient buffers of data parallelism, and the main parameters that a rank updates.

Sources: Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py, distributed_data_parallel.py and
megatron/core/optimizer/distrib_optimizer.py, optimizer.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...algebra import round_up
from ...parallel.layout import Coordinates, Layout
from .kernels import Parameter
from .settings import MegatronSettings

PARAMETER_ALIGNMENT = 64
"""Each parameter begins at a multiple of this number of elements in a buffer of the distributed optimizer."""

BUCKET_ALIGNMENT = 128
"""The end of a bucket is a multiple of this number of elements, and of the number of ranks that share the bucket."""

BUCKET_ALIGNMENT_FOR_BUSBW = 1 << 16
"""Alignment of a bucket's end with --ddp-pad-buckets-for-high-nccl-busbw, in elements."""

SMALLEST_BUCKET_ELEMENTS = 40_000_000
BUCKET_ELEMENTS_PER_RANK = 1_000_000
"""Size of a bucket per rank, in elements, if gradient reductions overlap the backward pass."""


class ElementRange(NamedTuple):
    """A range of a buffer's elements: `start` inclusive, `end` exclusive."""

    start: int
    end: int


@dataclass
class GradientBuffer:
    """A contiguous gradient buffer, which also has the weights under the distributed optimizer.

    shard_count: number of ranks that divide it. element_count: number of elements. ranges_by_parameter: parameter → its
        range and bucket index.
    has_unsplit_parameters: whether every parameter lies in a single shard.
    """

    parameters: list[Parameter]
    is_expert: bool
    shard_count: int
    element_count: int
    buckets: list[ElementRange]
    ranges_by_parameter: dict[int, tuple[ElementRange, int]]
    has_unsplit_parameters: bool = False

    @property
    def is_fp8(self) -> bool:
        """Whether the buffer's weights are stored in 8 bits."""
        return self.parameters[0].is_fp8


def make_buffer(
    parameters: list[Parameter],
    is_expert: bool,
    settings: MegatronSettings,
    layout: Layout,
    bucket_elements: int | None,
    is_tied: bool,
    is_distributed: bool,
) -> GradientBuffer:
    """Returns the gradient buffer of a group of parameters.

    bucket_elements: elements after which a bucket ends; None for a single bucket.
    is_tied: whether embedding and output layer share their table, which then has a bucket of its own.
    is_distributed: whether ranks divide the buffer.
    """
    shard_count = layout.expert_shard_count if is_expert else layout.shard_count
    if not is_distributed:
        buffer_elements = sum(parameter.element_count for parameter in parameters)
        return GradientBuffer(
            parameters, is_expert, shard_count, buffer_elements, [ElementRange(0, buffer_elements)], {}
        )
    bucket_multiple = math.lcm(
        shard_count, BUCKET_ALIGNMENT, BUCKET_ALIGNMENT_FOR_BUSBW if settings.ddp_pad_buckets_for_high_nccl_busbw else 1
    )
    next_start = bucket_start = 0
    is_bucket_open = False
    bucket_ranges: list[ElementRange] = []
    parameter_ranges: dict[int, tuple[ElementRange, int]] = {}

    def close_bucket(unpadded_end: int) -> int:
        """Ends the current bucket; returns the buffer index of the bucket's end after padding."""
        bucket_ranges.append(ElementRange(bucket_start, round_up(unpadded_end, bucket_multiple)))
        return bucket_ranges[-1].end

    for parameter in reversed(parameters):
        next_start = round_up(next_start, PARAMETER_ALIGNMENT)
        needs_separate_bucket = is_tied and parameter.role in ("table", "head")
        if needs_separate_bucket and is_bucket_open:
            bucket_start = next_start = close_bucket(next_start)
            is_bucket_open = False
        parameter_ranges[id(parameter.tensor)] = (
            ElementRange(next_start, next_start + parameter.element_count),
            len(bucket_ranges),
        )
        next_start += parameter.element_count
        is_bucket_open = True
        if needs_separate_bucket or (bucket_elements is not None and next_start - bucket_start >= bucket_elements):
            bucket_start = next_start = close_bucket(next_start)
            is_bucket_open = False
    if is_bucket_open:
        close_bucket(next_start)
    return GradientBuffer(parameters, is_expert, shard_count, bucket_ranges[-1].end, bucket_ranges, parameter_ranges)


def bucket_elements_of_chunk(
    settings: MegatronSettings, layout: Layout, rank_coordinates: Coordinates, chunk_index: int, parameters: int
) -> int | None:
    """Returns the number of gradient elements per bucket; None for a single bucket.

    Only the first chunk of the first stage has several buckets, and only to overlap reductions.
    parameters: number of the chunk's parameters. Source: megatron/training/training.py, `resolve_ddp_bucket_size`.
    """
    if (
        not settings.overlap_grad_reduce
        or rank_coordinates.pp
        or chunk_index
        or settings.overlap_param_gather_with_optimizer_step
    ):
        return None
    if settings.ddp_num_buckets:
        return parameters // settings.ddp_num_buckets
    if settings.ddp_bucket_size:
        return settings.ddp_bucket_size
    return max(SMALLEST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * layout.dp * layout.cp)


class OptimizerUpdate(NamedTuple):
    """The elements of a parameter that this rank's optimizer updates.

    element_count: elements. state_count: number of state tensors of that size.
    """

    element_count: int
    state_count: int


def optimizer_updates(
    buffers: Sequence[GradientBuffer],
    is_distributed: bool,
    layout: Layout,
    rank_coordinates: Coordinates,
    optimizer: str = "adam",
) -> Iterator[OptimizerUpdate]:
    """Yields this rank's optimizer updates in the optimizer's order.

    Muon has one state for matrices and leaves other parameters to Adam; SGD has one state for all parameters.

    Source: core/optimizer/__init__.py, `_get_param_groups` and `_get_megatron_emerging_optimizer`.
    """
    state_count = 1 if optimizer == "sgd" else 2
    if optimizer == "muon":
        for buffer in buffers:
            yield from (
                OptimizerUpdate(parameter.element_count, 1)
                for parameter in buffer.parameters
                if is_updated_by_muon(parameter)
            )
    for has_decay in (True, False):
        for buffer in buffers:
            group_parameters = [
                parameter for parameter in buffer.parameters if _has_weight_decay(parameter) is has_decay
            ]
            if optimizer == "muon":
                group_parameters = [parameter for parameter in group_parameters if not is_updated_by_muon(parameter)]
            if not is_distributed:
                yield from (OptimizerUpdate(parameter.element_count, state_count) for parameter in group_parameters)
                continue
            shard_number = shard_index(buffer, layout, rank_coordinates)
            for bucket_index, bucket_range in enumerate(buffer.buckets):
                shard_width = (bucket_range.end - bucket_range.start) // buffer.shard_count
                shard_start = bucket_range.start + shard_number * shard_width
                for parameter in reversed(group_parameters):
                    (parameter_start, parameter_end), bucket_of_parameter = buffer.ranges_by_parameter[
                        id(parameter.tensor)
                    ]
                    overlap_elements = min(shard_start + shard_width, parameter_end) - max(shard_start, parameter_start)
                    if bucket_of_parameter == bucket_index and overlap_elements > 0:
                        yield OptimizerUpdate(overlap_elements, state_count)


def is_updated_by_muon(parameter: Parameter) -> bool:
    """Whether Muon updates a parameter: only matrices outside the embedding and the output layer."""
    return len(parameter.tensor.shape) == 2 and parameter.role not in ("table", "head")


def shard_index(buffer: GradientBuffer, layout: Layout, rank_coordinates: Coordinates) -> int:
    """Returns the index of a rank's shard of a buffer. Context-parallel ranks are neighbours."""
    rank_in_group = rank_coordinates.edp if buffer.is_expert else rank_coordinates.dp * layout.cp + rank_coordinates.cp
    return rank_in_group % buffer.shard_count


def _has_weight_decay(parameter: Parameter) -> bool:
    """Whether weight decay applies to a parameter: to matrices, not to vectors."""
    return len(parameter.tensor.shape) > 1
