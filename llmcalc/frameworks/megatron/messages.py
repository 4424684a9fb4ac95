"""The collective messages by which Megatron-LM reduces gradients and gathers weights across replicas.

All gradients of a chunk of layers are summed as float32 once in a step, in one buffer; with the distributed optimizer
(ZeRO stage 1) each rank gets its part, and the weights are gathered (Megatron-LM, core/distributed, without
`--overlap-grad-reduce`, and without the padding of its buffers). Megatron-FSDP (stage 3) gathers weights before both
passes of every micro-batch, and reduces gradients after each; its messages, one for each layer, are counted together.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...parallel.messages import GradientRules, Message, ReplicatedWeights
from ...parallel.placements import FLOAT32_BYTES

WEIGHT_SHARDING_STAGE = 3
"""The ZeRO stage that shards weights."""


def gradient_messages(replicated_weights: ReplicatedWeights) -> Iterator[Message]:
    """Yields the collective messages for the weights of a group of replicas."""
    group, gradient_bytes = replicated_weights.replica_group, replicated_weights.element_count * FLOAT32_BYTES
    if not replicated_weights.layout.zero:
        yield group.message("all_reduce", gradient_bytes, 1)
        return
    reduction_count = (
        replicated_weights.stage_chunk.micro_batches if replicated_weights.layout.zero == WEIGHT_SHARDING_STAGE else 1
    )
    gather_count = 2 * reduction_count if replicated_weights.layout.zero == WEIGHT_SHARDING_STAGE else 1
    yield group.message("reduce_scatter", gradient_bytes, reduction_count)
    yield group.replica_all_reduce(gradient_bytes // group.shards, 1)
    yield group.message("all_gather", replicated_weights.element_count * replicated_weights.element_bytes, gather_count)


def gradient_rules() -> GradientRules:
    """Returns the rules by which Megatron-LM sums gradients across ranks."""
    return GradientRules(
        "megatron",
        (0, 1, 3),
        gradient_messages,
        reduces_in_float32=True,
        reduces_in_one_buffer=True,
        is_always_reentrant=True,
    )
