"""The collectives (messages between ranks) by which DeepSpeed reduces gradients and gathers weights.

Gradients are reduced in the format of the weights, in buckets of 500 million elements, in stages 2 and 3 per
micro-batch. Stages 1 and 2 all-reduce each bucket, of which a rank keeps its own part
(`allreduce_and_copy_with_multiple_ranks` of runtime/zero/stage_1_and_2.py). Weights are gathered once per step, in
stage 3 module by module in both passes (deepspeed/runtime/zero).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...parallel.messages import GradientRules, Message, ReplicatedWeights
from ...parallel.placements import CollectiveKind
from ...parallel.weight_shards import WeightShard
from ..launch.launch_types import Launch
from .settings import DeepSpeedSettings

BUCKET_ELEMENTS = 5 * 10**8
"""Elements of gradients that are reduced at once (`reduce_bucket_size`)."""


def gradient_messages(replicated_weights: ReplicatedWeights) -> Iterator[Message]:
    """Yields the collectives for the weights of a group of replicas."""
    zero_stage = replicated_weights.layout.zero
    replica_group = replicated_weights.replica_group
    element_bytes = replicated_weights.element_bytes
    if not zero_stage:
        for bucket_elements in _bucket_sizes(replicated_weights.element_count):
            yield replica_group.message("all_reduce", bucket_elements * element_bytes, 1)
        return
    reduction_count = replicated_weights.stage_chunk.micro_batches if zero_stage >= 2 else 1
    reduction_kind: CollectiveKind = "reduce_scatter" if zero_stage == 3 else "all_reduce"
    for bucket_elements in _bucket_sizes(replicated_weights.element_count):
        yield replica_group.message(reduction_kind, bucket_elements * element_bytes, reduction_count)
        yield replica_group.replica_all_reduce(bucket_elements * element_bytes // replica_group.shards, reduction_count)
    if zero_stage < 3:
        yield replica_group.message("all_gather", replicated_weights.element_count * element_bytes, 1)
        return
    for weights in _group_by_module(replicated_weights.weight_shards):
        bucket_elements = sum(weight.tensor.size for weight in weights)
        yield replica_group.message(
            "all_gather",
            bucket_elements * element_bytes,
            2 * replicated_weights.stage_chunk.micro_batches * weights[0].module_count,
        )


def _group_by_module(weights: list[WeightShard]) -> list[list[WeightShard]]:
    """Groups the weights by the module that contains them."""
    weights_by_module: dict[object, list[WeightShard]] = {}
    for weight in weights:
        weights_by_module.setdefault(weight.path, []).append(weight)
    return list(weights_by_module.values())


def _bucket_sizes(element_count: int) -> list[int]:
    """Returns the numbers of elements of the buckets into which gradients are divided."""
    full_buckets, remaining_elements = divmod(element_count, BUCKET_ELEMENTS)
    return [BUCKET_ELEMENTS] * full_buckets + [remaining_elements] * (remaining_elements > 0)


def overlapped_parallel_groups(launched_run: Launch) -> frozenset[str] | None:
    """Returns the parallel groups whose collectives overlap the backward pass; None without `overlap_comm`.

    Without it the stage decides (`overlapped_stages` of the stack). Stage 0 reduces after the backward pass, and stages
    1 and 2 gather weights after the update (`allreduce_gradients` of runtime/engine.py, `all_gather_dp_groups`).
    """
    settings = launched_run.framework_settings
    if not isinstance(settings, DeepSpeedSettings) or settings.overlap_comm is None:
        return None
    zero_stage = launched_run.layout.zero if settings.stage is None else settings.stage
    return frozenset({"dp"} if settings.overlap_comm and zero_stage else ())


def gradient_rules() -> GradientRules:
    """Returns the rules by which DeepSpeed reduces gradients over replicas."""
    return GradientRules("deepspeed", (0, 1, 2, 3), gradient_messages)
