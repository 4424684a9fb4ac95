"""Muon over several ranks: each rank updates whole tensors, which lie in buffers in the order of the ranks.

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


def pack_buffer(
    parameters: list[Parameter], expert: bool, settings: MegatronSettings, layout: Layout, bucket: int | None
) -> Buffer:
    """Returns a buffer in which no tensor lies in two shards.

    The costliest tensors come first, each in the shard with the emptiest to compute.
    bucket: elements after which a bucket ends; None for a single bucket.
    """
    ranks = layout.expert_shards if expert else layout.shards
    divisor = math.lcm(ranks, BUCKET, BUSBW if settings.ddp_pad_buckets_for_high_nccl_busbw else 1)
    shard = math.lcm(ALIGNED, divisor // ranks)
    buckets: list[Range] = []
    ranges: dict[int, tuple[Range, int]] = {}
    costs = [0] * ranks

    def emit(chunk: list[Parameter]) -> None:
        limit = sum(parameter.size for parameter in chunk) / ranks * OVERFULL
        ends, places = [0] * ranks, list[tuple[Parameter, int, int]]()
        for parameter in sorted(chunk, key=lambda parameter: -_cost(parameter)):
            fit = [i for i in range(ranks) if padded(ends[i], ALIGNED) + parameter.size <= limit]
            i = min(fit, key=lambda i: costs[i]) if fit else min(range(ranks), key=lambda i: ends[i])
            start = padded(ends[i], ALIGNED)
            places.append((parameter, i, start))
            ends[i] = start + parameter.size
            costs[i] += _cost(parameter)
        width, begin = padded(max(ends), shard), buckets[-1].end if buckets else 0
        for parameter, i, start in places:
            start_in_buffer = begin + i * width + start
            ranges[id(parameter.tensor)] = Range(start_in_buffer, start_in_buffer + parameter.size), len(buckets)
        buckets.append(Range(begin, begin + ranks * width))

    waiting: list[Parameter] = []
    loads, largest = [0] * ranks, 0
    for parameter in reversed(parameters):
        if bucket is not None and waiting:
            absorbs = padded(min(loads), ALIGNED) + parameter.size <= padded(max(loads), shard)
            full = sum(parameter.size for parameter in waiting) >= max(bucket, int(ranks * largest * FULL))
            if full and not absorbs:
                emit(waiting)
                waiting, loads, largest = [], [0] * ranks, 0
        emptiest = min(range(ranks), key=lambda i: loads[i])
        loads[emptiest] = padded(loads[emptiest], ALIGNED) + parameter.size
        waiting.append(parameter)
        largest = max(largest, parameter.size)
    emit(waiting)
    return Buffer(parameters, expert, ranks, buckets[-1].end, buckets, ranges, packed=True)


def _cost(parameter: Parameter) -> int:
    """Returns the cost of orthogonalizing a matrix."""
    high, low = max(parameter.tensor.shape), min(parameter.tensor.shape)
    cost: int = high * low * low
    return cost


def by_layout(buffers: Sequence[Buffer], layout: Layout, coordinates: Coordinates) -> list[Updated]:
    """Returns what this rank's optimizers update: its ranges of Adam's parameters, and the matrices in its shards."""
    updates = list(updated([buffer for buffer in buffers if not buffer.packed], True, layout, coordinates))
    for buffer in buffers:
        if not buffer.packed:
            continue
        rank_shard = shard_of(buffer, layout, coordinates)
        for parameter in buffer.parameters:
            (start, _), number = buffer.ranges[id(parameter.tensor)]
            bucket = buffer.buckets[number]
            if (start - bucket.start) // ((bucket.end - bucket.start) // buffer.shards) == rank_shard:
                updates.append(Updated(parameter.size, 1))
    return updates


def by_turns(buffers: Sequence[Buffer], layout: Layout, coordinates: Coordinates) -> tuple[list[Updated], list[int]]:
    """Returns what this rank updates, and the elements that a step gathers of each kind (`allgather_params`).

    Whole tensors are dealt out to the ranks, the smallest first, forth and back.
    """
    rank_parameters: list[Parameter] = []
    gathered: list[int] = []
    for expert in (False, True):
        ranks, rank_in_group = (
            (layout.expert_dp, coordinates.edp)
            if expert
            else (layout.dp * layout.cp, coordinates.dp * layout.cp + coordinates.cp)
        )
        turns = [*range(ranks), *reversed(range(ranks))]
        parameters = [parameter for buffer in buffers if buffer.expert is expert for parameter in buffer.parameters]
        dealt = sorted(
            sorted(parameters, key=lambda parameter: not by_muon(parameter)), key=lambda parameter: parameter.size
        )
        rank_parameters += [parameter for i, parameter in enumerate(dealt) if turns[i % len(turns)] == rank_in_group]
        if ranks > 1 and parameters:
            gathered.append(sum(parameter.size for parameter in parameters))
    rank_parameters.sort(key=lambda parameter: not by_muon(parameter))
    return [Updated(parameter.size, 1 if by_muon(parameter) else 2) for parameter in rank_parameters], gathered
