"""The unused bytes in the allocator's segments of weights, which SGLang counts as weights.

A tensor of 10 MiB or more has a segment of its own, whose size is a multiple of 2 MiB (`kMinLargeAlloc`, `kRoundLarge`
of c10/cuda/CUDACachingAllocator.cpp). Projections of queries, keys and values are one matrix, gates and up-projections
too (layers/linear.py: `QKVParallelLinear`, `MergedColumnParallelLinear`; layers/moe/fused_moe_triton: `w13_weight`).
"""

from __future__ import annotations

from ...ops import Embedding, ExpertLinear, Linear
from ...optional import included_part_names
from ..engines.rank import EngineRank

LEAST_SEGMENT_TENSOR, SEGMENT_ROUNDING = 10 * 2**20, 2 * 2**20
"""Bytes of the smallest tensor with a segment of its own, and the multiple of a segment's size."""

FUSED_MATRICES = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
"""Name of a projection → the name of the matrix that it is a part of."""


MXFP4_GROUP, LOADED_SCALE_BYTES = 32, 4
"""Elements of a group of MXFP4 with one scale, and bytes of a scale as it is loaded (float32)."""


def loaded_scale_bytes(rank: EngineRank) -> int:
    """Returns the bytes of the float32 scales of experts in MXFP4 that stay beside Marlin's repacked ones.

    0 for a checkpoint of another format than DeepSeek-V4's, of fp8 with experts in MXFP4.
    """
    quantization = rank.preset.quantization_config or {}
    if rank.quantize is not None or (quantization.get("quant_method"), quantization.get("expert_dtype")) != (
        "fp8",
        "fp4",
    ):
        return 0
    included_parts = included_part_names(rank.with_mtp, with_towers=False)
    expert_elements = sum(
        int(weight_tensor.size) * int(place.times)
        for place in rank.model.tree().walk()
        if isinstance(place.node.op, ExpertLinear) and (not place.optional or place.optional in included_parts)
        for weight_tensor in place.node.op.tensors()
    )
    return expert_elements // MXFP4_GROUP * LOADED_SCALE_BYTES


def unused_segment_bytes(rank: EngineRank, element_bytes: int) -> int:
    """Returns the unused bytes in the allocator segments of weights; 0 for quantized weights.

    element_bytes: bytes of an element of the weights.
    """
    if rank.scheme is not None or rank.preset.has_quantized_weights:
        return 0
    matrix_sizes: dict[tuple[str, str], tuple[int, int]] = {}
    for tree_node in rank.model.tree().walk():
        layer_op = tree_node.node.op
        if tree_node.optional or not isinstance(layer_op, Linear | ExpertLinear | Embedding):
            continue
        matrix_key = (tree_node.path.rpartition(".")[0], FUSED_MATRICES.get(tree_node.node.name, tree_node.node.name))
        elements_before, _ = matrix_sizes.get(matrix_key, (0, 1))
        matrix_sizes[matrix_key] = (
            elements_before + sum(int(weight_tensor.size) for weight_tensor in layer_op.tensors()),
            int(tree_node.times),
        )
    tensor_sizes = (
        (tensor_elements * element_bytes, matrix_count) for tensor_elements, matrix_count in matrix_sizes.values()
    )
    return sum(
        -tensor_bytes % SEGMENT_ROUNDING * matrix_count
        for tensor_bytes, matrix_count in tensor_sizes
        if tensor_bytes >= LEAST_SEGMENT_TENSOR
    )
