"""Buffers of data parallelism, and the main parameters that a rank updates.

Sources: Megatron-LM, megatron/core/distributed/param_and_grad_buffer.py, distributed_data_parallel.py and
megatron/core/optimizer/distrib_optimizer.py, optimizer.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...parallel.layout import Coordinates, Layout
from .kernels import Parameter
from .settings import MegatronSettings

ALIGNED = 64
"""Elements at whose multiples parameters begin in a buffer of the distributed optimizer."""

BUCKET = 128
"""Elements: the end of a bucket is a multiple of this, and of the ranks that share it."""

BUSBW = 1 << 16
"""The same with --ddp-pad-buckets-for-high-nccl-busbw."""

SMALLEST_BUCKET = 40_000_000
BUCKET_OF_RANK = 1_000_000
"""Elements of a bucket where gradients are reduced while others are computed: at least, and for each rank."""


class Range(NamedTuple):
    """Elements of a buffer, from `start` up to `end`."""

    start: int
    end: int


@dataclass
class Buffer:
    """The gradients, and with the distributed optimizer the weights, of the parameters of one kind.

    shards: ranks that divide it. size: elements. ranges: parameter → where it lies, and in which bucket.
    packed: whether no parameter lies in two shards.
    """

    parameters: list[Parameter]
    expert: bool
    shards: int
    size: int
    buckets: list[Range]
    ranges: dict[int, tuple[Range, int]]
    packed: bool = False

    @property
    def narrow(self) -> bool:
        """Whether its weights have 8 bits."""
        return self.parameters[0].narrow


def padded(n: int, multiple: int) -> int:
    """Returns a number rounded up to a multiple."""
    return -(-n // multiple) * multiple


def make_buffer(
    parameters: list[Parameter],
    expert: bool,
    settings: MegatronSettings,
    layout: Layout,
    bucket: int | None,
    tied: bool,
    distributed: bool,
) -> Buffer:
    """Returns the buffer of parameters of one kind.

    bucket: elements after which a bucket ends; None for a single bucket.
    tied: whether embedding and output layer share their table, which then has a bucket of its own.
    distributed: whether ranks divide the buffer.
    """
    shards = layout.expert_shards if expert else layout.shards
    if not distributed:
        size = sum(parameter.size for parameter in parameters)
        return Buffer(parameters, expert, shards, size, [Range(0, size)], {})
    multiple = math.lcm(shards, BUCKET, BUSBW if settings.ddp_pad_buckets_for_high_nccl_busbw else 1)
    position = start = 0
    is_open = False
    buckets: list[Range] = []
    ranges: dict[int, tuple[Range, int]] = {}

    def close(end: int) -> int:
        buckets.append(Range(start, padded(end, multiple)))
        return buckets[-1].end

    for parameter in reversed(parameters):
        position = padded(position, ALIGNED)
        alone = tied and parameter.role in ("table", "head")
        if alone and is_open:
            start = position = close(position)
            is_open = False
        ranges[id(parameter.tensor)] = Range(position, position + parameter.size), len(buckets)
        position += parameter.size
        is_open = True
        if alone or (bucket is not None and position - start >= bucket):
            start = position = close(position)
            is_open = False
    if is_open:
        close(position)
    return Buffer(parameters, expert, shards, buckets[-1].end, buckets, ranges)


def bucket_size(
    settings: MegatronSettings, layout: Layout, coordinates: Coordinates, chunk: int, parameters: int
) -> int | None:
    """Returns the elements of a bucket; None for a single bucket.

    Only the first chunk of the first stage has several buckets, and only to overlap reductions.
    parameters: number of the chunk's parameters. Source: megatron/training/training.py, `resolve_ddp_bucket_size`.
    """
    if not settings.overlap_grad_reduce or coordinates.pp or chunk or settings.overlap_param_gather_with_optimizer_step:
        return None
    if settings.ddp_num_buckets:
        return parameters // settings.ddp_num_buckets
    if settings.ddp_bucket_size:
        return settings.ddp_bucket_size
    return max(SMALLEST_BUCKET, BUCKET_OF_RANK * layout.dp * layout.cp)


class Updated(NamedTuple):
    """A parameter, or this rank's range of it, that the optimizer updates.

    size: elements. states: number of state tensors of that size.
    """

    size: int
    states: int


def updated(
    buffers: Sequence[Buffer], distributed: bool, layout: Layout, coordinates: Coordinates, optimizer: str = "adam"
) -> Iterator[Updated]:
    """Yields what this rank's optimizer updates, in its order.

    Muon has one state for matrices and leaves other parameters to Adam; SGD has one state for all parameters.

    Source: core/optimizer/__init__.py, `_get_param_groups` and `_get_megatron_emerging_optimizer`.
    """
    states = 1 if optimizer == "sgd" else 2
    if optimizer == "muon":
        for buffer in buffers:
            yield from (Updated(parameter.size, 1) for parameter in buffer.parameters if by_muon(parameter))
    for decays in (True, False):
        for buffer in buffers:
            group = [parameter for parameter in buffer.parameters if _decays(parameter) is decays]
            if optimizer == "muon":
                group = [parameter for parameter in group if not by_muon(parameter)]
            if not distributed:
                yield from (Updated(parameter.size, states) for parameter in group)
                continue
            shard = shard_of(buffer, layout, coordinates)
            for number, bucket in enumerate(buffer.buckets):
                width = (bucket.end - bucket.start) // buffer.shards
                low = bucket.start + shard * width
                for parameter in reversed(group):
                    (start, end), bucket_number = buffer.ranges[id(parameter.tensor)]
                    part = min(low + width, end) - max(low, start)
                    if bucket_number == number and part > 0:
                        yield Updated(part, states)


def by_muon(parameter: Parameter) -> bool:
    """Whether Muon updates a parameter: a matrix, but not of the embedding or the output layer."""
    return len(parameter.tensor.shape) == 2 and parameter.role not in ("table", "head")


def shard_of(buffer: Buffer, layout: Layout, coordinates: Coordinates) -> int:
    """Returns the number of a rank's shard of a buffer; ranks of a sequence are neighbours."""
    rank_in_group = coordinates.edp if buffer.expert else coordinates.dp * layout.cp + coordinates.cp
    return rank_in_group % buffer.shards


def _decays(parameter: Parameter) -> bool:
    """Whether weight decay applies to a parameter: not to vectors."""
    return len(parameter.tensor.shape) > 1
