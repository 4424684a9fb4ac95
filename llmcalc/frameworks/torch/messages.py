"""Messages of DistributedDataParallel: gradients in buckets, once per step, in the weights' number format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...parallel.messages import GradientRules, Message, ReplicatedWeights

BUCKET_BYTES = 2**20, 25 * 2**20
"""Bytes of gradients in DistributedDataParallel's first bucket, and in each further bucket."""


def gradient_messages(replicated_weights: ReplicatedWeights) -> Iterator[Message]:
    """Yields the all-reduces of replicated weights' gradients, in buckets that fill from the last parameter on."""
    sizes_of_gradients = (
        weight.tensor.size * replicated_weights.element_bytes
        for weight in reversed(replicated_weights.weight_shards)
        for _ in range(weight.module_count)
    )
    for bucket_bytes in bucket_sizes(sizes_of_gradients):
        yield replicated_weights.replica_group.message("all_reduce", bucket_bytes, 1)


def bucket_sizes(gradient_sizes: Iterable[int]) -> list[int]:
    """Yields the bytes of each DistributedDataParallel bucket.

    gradient_sizes: bytes of each, in the order in which the backward pass completes them.
    """
    bucket_bytes_list: list[int] = []
    bucket_bytes = 0
    for gradient_bytes in gradient_sizes:
        bucket_bytes += gradient_bytes
        if bucket_bytes >= BUCKET_BYTES[min(len(bucket_bytes_list), 1)]:
            bucket_bytes_list.append(bucket_bytes)
            bucket_bytes = 0
    return bucket_bytes_list + [bucket_bytes] * (bucket_bytes > 0)


def gradient_rules() -> GradientRules:
    """Returns the rules by which DDP sums gradients over replicas."""
    return GradientRules("torch", (0,), gradient_messages)
