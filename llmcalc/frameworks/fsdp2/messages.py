"""The collectives (messages between ranks) by which FSDP2 gathers weights and reduces gradients.

Per micro-batch, a layer's weights are gathered in bfloat16 before its forward pass and, if they are freed in between,
before its backward pass. Weights outside of layers are gathered once. Gradients are reduced in float32 after the
backward pass (torchtitan, MixedPrecisionPolicy). In a pipeline all of this happens once per step
(torch/distributed/pipelining/stage.py).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...algebra import Number
from ...optional import MTP
from ...parallel.messages import GradientRules, Message, ReplicatedWeights
from ...parallel.placements import FLOAT32_BYTES
from ...parallel.weight_shards import shard_rows


def gradient_messages(replicated_weights: ReplicatedWeights) -> Iterator[Message]:
    """Yields the collectives of a group of replicas: for each layer, then for weights outside of layers.

    All shards are padded to the longest.
    """
    layout, replica_group = replicated_weights.layout, replicated_weights.replica_group
    if not layout.zero:
        yield replica_group.message("all_reduce", replicated_weights.element_count * FLOAT32_BYTES, 1)
        return
    elements_outside_layers: Number = 0
    sizes_by_group: dict[tuple[object, ...], tuple[Number, int]] = {}
    for weight in replicated_weights.weight_shards:
        row_count, *other_axis_sizes = weight.tensor.shape
        padded_elements = shard_rows(row_count, replica_group.shards, 0) * replica_group.shards
        for axis_size in other_axis_sizes:
            padded_elements *= axis_size
        stack_name, layer_indices = weight.path[0]
        if stack_name not in ("layers", MTP.name):
            elements_outside_layers += padded_elements
            continue
        layer_count_of_stack = tuple(layer_indices or ())
        previous_elements, _ = sizes_by_group.get((stack_name, *layer_count_of_stack), (0, 0))
        sizes_by_group[stack_name, *layer_count_of_stack] = (
            previous_elements + padded_elements * (weight.module_count // len(layer_count_of_stack)),
            len(layer_count_of_stack),
        )
    pass_count = replicated_weights.stage_chunk.micro_batches if layout.pp == 1 else 1
    gathers_per_step = 2 if layout.reshard and layout.zero == 3 and layout.pp == 1 else 1
    for padded_elements, layer_count, layer_repeats in [
        *((padded_elements, layer_count, gathers_per_step) for padded_elements, layer_count in sizes_by_group.values()),
        (elements_outside_layers, 1, 1),
    ]:
        yield replica_group.message(
            "all_gather", padded_elements * replicated_weights.element_bytes, layer_count * layer_repeats * pass_count
        )
        yield replica_group.message("reduce_scatter", padded_elements * FLOAT32_BYTES, layer_count * pass_count)
        yield replica_group.replica_all_reduce(
            padded_elements * FLOAT32_BYTES // replica_group.shards, layer_count * pass_count
        )


def gradient_rules() -> GradientRules:
    """Returns the rules by which FSDP2 reduces gradients over replicas."""
    return GradientRules("fsdp2", (0, 2, 3), gradient_messages, reduces_in_float32=True)
