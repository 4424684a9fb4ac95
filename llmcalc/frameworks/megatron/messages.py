"""The collective messages with which Megatron-LM reduces gradients and gathers weights across replicas.

All gradients of a chunk of layers are summed as float32 once in a step, in one buffer; with the distributed optimizer
(ZeRO stage 1) each rank gets its part, and the weights are gathered (Megatron-LM, core/distributed, without
`--overlap-grad-reduce`, and without the padding of its buffers).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...parallel.messages import GradientRules, Message, ReplicatedWeights
from ...parallel.placements import FLOAT32


def gradient_messages(replicated_weights: ReplicatedWeights) -> Iterator[Message]:
    """Yields the collective messages for the weights of a group of replicas."""
    ranks, gradients = replicated_weights.ranks, replicated_weights.elements * FLOAT32
    if not replicated_weights.layout.zero:
        yield ranks.message("all_reduce", gradients, 1)
        return
    yield ranks.message("reduce_scatter", gradients, 1)
    yield ranks.replica_all_reduce(gradients // ranks.shards, 1)
    yield ranks.message("all_gather", replicated_weights.elements * replicated_weights.width, 1)


def gradient_rules() -> GradientRules:
    """Returns the rules by which Megatron-LM sums gradients across ranks."""
    return GradientRules(
        "megatron", (0, 1), gradient_messages, reduces_in_float32=True, reduces_one_buffer=True, always_reentrant=True
    )
