"""Muon over several ranks: whole tensors are shared out, and lie in buffers in the order of their ranks.

Source: Megatron-LM, megatron/core/optimizer/layer_wise_optimizer.py, `_compute_per_buffer_param_layout` and
`_shard_params_ping_pong`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...parallel.layout import Coordinates, Layout
from .kernels import Parameter
from .param_and_grad_buffer import ALIGNED, BUCKET, BUSBW, Buffer, Range, Updated, by_muon, padded, shard_of, updated
from .settings import MegatronSettings

OVERFULL = 1.3
"""How much fuller than an even share a shard may get to even out the cost."""

FULL = 0.9
"""Of the largest tensor times the ranks: a bucket does not end before it holds so much."""


def packed(
    parameters: list[Parameter], expert: bool, settings: MegatronSettings, layout: Layout, bucket: int | None
) -> Buffer:
    """A buffer in which no tensor lies in two shards: the costliest first, each in the shard with the least to compute.

    bucket: elements after which one ends; None if there is one.
    """
    ranks = layout.expert_shards if expert else layout.shards
    divisor = math.lcm(ranks, BUCKET, BUSBW if settings.ddp_pad_buckets_for_high_nccl_busbw else 1)
    shard = math.lcm(ALIGNED, divisor // ranks)
    buckets: list[Range] = []
    ranges: dict[int, tuple[Range, int]] = {}
    costs = [0] * ranks

    def emit(chunk: list[Parameter]) -> None:
        most = sum(one.size for one in chunk) / ranks * OVERFULL
        ends, places = [0] * ranks, list[tuple[Parameter, int, int]]()
        for one in sorted(chunk, key=lambda one: -_cost(one)):
            fit = [i for i in range(ranks) if padded(ends[i], ALIGNED) + one.size <= most]
            i = min(fit, key=lambda i: costs[i]) if fit else min(range(ranks), key=lambda i: ends[i])
            start = padded(ends[i], ALIGNED)
            places.append((one, i, start))
            ends[i] = start + one.size
            costs[i] += _cost(one)
        width, begin = padded(max(ends), shard), buckets[-1].end if buckets else 0
        for one, i, start in places:
            at = begin + i * width + start
            ranges[id(one.tensor)] = Range(at, at + one.size), len(buckets)
        buckets.append(Range(begin, begin + ranks * width))

    waiting: list[Parameter] = []
    loads, largest = [0] * ranks, 0
    for one in reversed(parameters):
        if bucket is not None and waiting:
            absorbs = padded(min(loads), ALIGNED) + one.size <= padded(max(loads), shard)
            full = sum(each.size for each in waiting) >= max(bucket, int(ranks * largest * FULL))
            if full and not absorbs:
                emit(waiting)
                waiting, loads, largest = [], [0] * ranks, 0
        least = min(range(ranks), key=lambda i: loads[i])
        loads[least] = padded(loads[least], ALIGNED) + one.size
        waiting.append(one)
        largest = max(largest, one.size)
    emit(waiting)
    return Buffer(parameters, expert, ranks, buckets[-1].end, buckets, ranges, packed=True)


def _cost(one: Parameter) -> int:
    """What the orthogonalization of a matrix costs."""
    high, low = max(one.tensor.shape), min(one.tensor.shape)
    cost: int = high * low * low
    return cost


def by_layout(buffers: Sequence[Buffer], layout: Layout, at: Coordinates) -> list[Updated]:
    """What this rank's optimizers update: parts of what Adam does, and the matrices in this rank's shards."""
    found = list(updated([one for one in buffers if not one.packed], True, layout, at))
    for buffer in buffers:
        if not buffer.packed:
            continue
        mine = shard_of(buffer, layout, at)
        for one in buffer.parameters:
            (start, _), number = buffer.ranges[id(one.tensor)]
            bucket = buffer.buckets[number]
            if (start - bucket.start) // ((bucket.end - bucket.start) // buffer.shards) == mine:
                found.append(Updated(one.size, 1))
    return found


def by_turns(buffers: Sequence[Buffer], layout: Layout, at: Coordinates) -> tuple[list[Updated], list[int]]:
    """What this rank updates where whole tensors are dealt out to ranks, the smallest first, forth and back; and for
    each kind of parameters the elements that a step gathers (`allgather_params`).
    """
    mine: list[Parameter] = []
    gathered: list[int] = []
    for expert in (False, True):
        ranks, here = (layout.expert_dp, at.edp) if expert else (layout.dp * layout.cp, at.dp * layout.cp + at.cp)
        turns = [*range(ranks), *reversed(range(ranks))]
        every = [one for buffer in buffers if buffer.expert is expert for one in buffer.parameters]
        dealt = sorted(sorted(every, key=lambda one: not by_muon(one)), key=lambda one: one.size)
        mine += [one for i, one in enumerate(dealt) if turns[i % len(turns)] == here]
        if ranks > 1 and every:
            gathered.append(sum(one.size for one in every))
    mine.sort(key=lambda one: not by_muon(one))
    return [Updated(one.size, 1 if by_muon(one) else 2) for one in mine], gathered
