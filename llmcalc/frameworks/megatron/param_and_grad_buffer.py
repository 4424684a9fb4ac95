"""What a rank makes before the first step: buffers of data parallelism, and main parameters.

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
    return -(-n // multiple) * multiple


def buffer_of(
    parameters: list[Parameter],
    expert: bool,
    settings: MegatronSettings,
    layout: Layout,
    bucket: int | None,
    tied: bool,
    distributed: bool,
) -> Buffer:
    """distributed: whether ranges of it are this rank's. bucket: elements after which one ends; None if there is one.
    tied: whether the table of the embedding is the output layer's too: then it has a bucket of its own.
    """
    shards = layout.expert_shards if expert else layout.shards
    if not distributed:
        size = sum(one.size for one in parameters)
        return Buffer(parameters, expert, shards, size, [Range(0, size)], {})
    multiple = math.lcm(shards, BUCKET, BUSBW if settings.ddp_pad_buckets_for_high_nccl_busbw else 1)
    at = start = 0
    waiting = False
    buckets: list[Range] = []
    ranges: dict[int, tuple[Range, int]] = {}

    def close(end: int) -> int:
        buckets.append(Range(start, padded(end, multiple)))
        return buckets[-1].end

    for one in reversed(parameters):
        at = padded(at, ALIGNED)
        alone = tied and one.role in ("table", "head")
        if alone and waiting:
            start = at = close(at)
            waiting = False
        ranges[id(one.tensor)] = Range(at, at + one.size), len(buckets)
        at += one.size
        waiting = True
        if alone or (bucket is not None and at - start >= bucket):
            start = at = close(at)
            waiting = False
    if waiting:
        close(at)
    return Buffer(parameters, expert, shards, buckets[-1].end, buckets, ranges)


def bucket_size(settings: MegatronSettings, layout: Layout, at: Coordinates, chunk: int, parameters: int) -> int | None:
    """Only the first chunk of the first rank of a pipeline has several buckets, and only to overlap reductions.

    parameters: of that chunk. Source: megatron/training/training.py, `resolve_ddp_bucket_size`.
    """
    if not settings.overlap_grad_reduce or at.pp or chunk or settings.overlap_param_gather_with_optimizer_step:
        return None
    if settings.ddp_num_buckets:
        return parameters // settings.ddp_num_buckets
    if settings.ddp_bucket_size:
        return settings.ddp_bucket_size
    return max(SMALLEST_BUCKET, BUCKET_OF_RANK * layout.dp * layout.cp)


class Updated(NamedTuple):
    """A parameter, or this rank's part of it, that its optimizer updates. states: tensors that it keeps of the size."""

    size: int
    states: int


def updated(
    buffers: Sequence[Buffer], distributed: bool, layout: Layout, at: Coordinates, optimizer: str = "adam"
) -> Iterator[Updated]:
    """What this rank's optimizer updates, in its order. Muon keeps a momentum of matrices, and leaves the rest to Adam;
    SGD keeps a momentum of everything.

    Source: core/optimizer/__init__.py, `_get_param_groups` and `_get_megatron_emerging_optimizer`.
    """
    states = 1 if optimizer == "sgd" else 2
    if optimizer == "muon":
        for buffer in buffers:
            yield from (Updated(one.size, 1) for one in buffer.parameters if by_muon(one))
    for decays in (True, False):
        for buffer in buffers:
            here = [one for one in buffer.parameters if _decays(one) is decays]
            if optimizer == "muon":
                here = [one for one in here if not by_muon(one)]
            if not distributed:
                yield from (Updated(one.size, states) for one in here)
                continue
            where = shard_of(buffer, layout, at)
            for number, bucket in enumerate(buffer.buckets):
                width = (bucket.end - bucket.start) // buffer.shards
                low = bucket.start + where * width
                for one in reversed(here):
                    (start, end), of = buffer.ranges[id(one.tensor)]
                    part = min(low + width, end) - max(low, start)
                    if of == number and part > 0:
                        yield Updated(part, states)


def by_muon(one: Parameter) -> bool:
    """Whether Muon updates a parameter: a matrix, but not of the embedding or the output layer."""
    return len(one.tensor.shape) == 2 and one.role not in ("table", "head")


def shard_of(buffer: Buffer, layout: Layout, at: Coordinates) -> int:
    """Which of the shards a rank has: neighbours in a group of shards differ by the sequence's rank first."""
    place = at.edp if buffer.expert else at.dp * layout.cp + at.cp
    return place % buffer.shards


def _decays(one: Parameter) -> bool:
    """Vectors are not decayed."""
    return len(one.tensor.shape) > 1
