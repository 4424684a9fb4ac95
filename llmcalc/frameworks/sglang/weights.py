"""Bytes that SGLang's free-memory measurement counts as weights: copies, unused ends of segments, scales."""

from __future__ import annotations

from ...ops import ExpertLinear
from ...optional import included_part_names
from ..engines.rank import EngineRank
from ..engines.weight_matrices import segment_remainders

MXFP4_GROUP, LOADED_SCALE_BYTES = 32, 4
"""Number of MXFP4 elements with a shared scale, and bytes of a scale when it is loaded (float32)."""


def loaded_scale_bytes(engine_rank: EngineRank) -> int:
    """Returns the bytes of MXFP4 experts' float32 scales that stay allocated after Marlin has repacked the scales.

    0 for a checkpoint of another format than DeepSeek-V4's, of fp8 with experts in MXFP4.
    """
    quantization_config = engine_rank.preset.quantization_config or {}
    if engine_rank.quantize is not None or (
        quantization_config.get("quant_method"),
        quantization_config.get("expert_dtype"),
    ) != ("fp8", "fp4"):
        return 0
    included_parts = included_part_names(engine_rank.includes_mtp, with_towers=False)
    expert_elements = sum(
        int(tensor.size) * int(node_position.copies)
        for node_position in engine_rank.model.tree().walk()
        if isinstance(node_position.node.op, ExpertLinear)
        and (not node_position.optional_part or node_position.optional_part in included_parts)
        for tensor in node_position.node.op.tensors()
    )
    return expert_elements // MXFP4_GROUP * LOADED_SCALE_BYTES


def unused_segment_bytes(engine_rank: EngineRank) -> int:
    """Returns the unused bytes in allocator segments of weights; 0 if ranks divide blocks with one scale."""
    return sum(
        remainder_bytes * segment_count for remainder_bytes, segment_count in segment_remainders(engine_rank).items()
    )


def copied_projection_bytes(engine_rank: EngineRank, element_bytes: int, is_nvidia: bool) -> int:
    """Returns the bytes of MLA's up-projections that stay in memory as copies for absorbed matrix products.

    Float8 weights stay in float8, with one scale of a matrix; NVIDIA's GPUs get blocks of them in 16 bits
    (models/deepseek_common/deepseek_weight_loader.py, `post_load_weights`).
    """
    quantization_scheme = engine_rank.quantization
    has_square_blocks = quantization_scheme is not None and quantization_scheme.has_square_blocks
    is_float8 = "fp8" in engine_rank.weight_kernels and not (is_nvidia and has_square_blocks)
    return engine_rank.up_projection_elements * (1 if is_float8 else element_bytes)
