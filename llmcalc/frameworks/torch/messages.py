"""Messages of DistributedDataParallel: gradients in buckets, once per step, in the weights' number format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...parallel.messages import GradientRules, Message, ReplicatedWeights

BUCKETS = 2**20, 25 * 2**20
"""Bytes of gradients in the first bucket of DistributedDataParallel, and in the others."""


def gradient_messages(group: ReplicatedWeights) -> Iterator[Message]:
    """Yields the all-reduces of replicated weights' gradients, in buckets that fill from the last parameter on."""
    sizes = (weight.tensor.size * group.width for weight in reversed(group.weights) for _ in range(weight.count))
    for size in bucket_sizes(sizes):
        yield group.ranks.message("all_reduce", size, 1)


def bucket_sizes(gradients: Iterable[int]) -> list[int]:
    """Yields the bytes of each DistributedDataParallel bucket.

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
    """Returns the rules by which DDP sums gradients over replicas."""
    return GradientRules("torch", (0,), gradient_messages)
