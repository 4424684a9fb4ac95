"""Messages of DistributedDataParallel: gradients once in a step, in the format of the weights, in buckets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...parallel.messages import GradientRules, Message, ReplicatedWeights

BUCKETS = 2**20, 25 * 2**20
"""Bytes of gradients in the first bucket of DistributedDataParallel, and in the others."""


def gradient_messages(group: ReplicatedWeights) -> Iterator[Message]:
    """The messages for weights that the same ranks hold; buckets fill from the last parameter to the first."""
    sizes = (weight.tensor.size * group.width for weight in reversed(group.weights) for _ in range(weight.count))
    for size in bucket_sizes(sizes):
        yield group.ranks.message("all_reduce", size, 1)


def bucket_sizes(gradients: Iterable[int]) -> list[int]:
    """Bytes of the buckets of DistributedDataParallel.

    gradients: bytes of each, in the order in which the backward pass completes them.
    """
    sizes: list[int] = []
    size = 0
    for bytes in gradients:
        size += bytes
        if size >= BUCKETS[min(len(sizes), 1)]:
            sizes.append(size)
            size = 0
    return sizes + [size] * (size > 0)


def gradient_rules() -> GradientRules:
    """How gradients are summed over the ranks that hold the same weights."""
    return GradientRules("torch", (0,), gradient_messages)
