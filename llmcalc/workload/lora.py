"""Storage of the frozen weights in a run with low-rank adapters.

QLoRA: Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes/functional.py, `quantize_4bit`.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..algebra import Number, ceil_div

Base: TypeAlias = Literal["none", "nf4", "nf4-dq", "int8"]
"""The frozen matrices of the layers: as the model's own numbers (`none`), in 4 bits (`nf4`), in 4 bits with scales that
are quantised themselves (`nf4-dq`), or in 8 bits (`int8`, LLM.int8: Dettmers et al. 2022, arXiv:2208.07339).
"""

Library: TypeAlias = Literal["peft", "torchtune", "litgpt", "mcore-bridge", "megatron-bridge"]
"""Whose adapters run. All train the same matrices; they differ in what is cast, copied, kept and shared."""

PARALLEL_LIBRARIES = frozenset({"mcore-bridge", "megatron-bridge"})
"""Libraries whose adapters stand beside the linear layers of Megatron-Core: mcore-bridge is ms-swift's."""

JOINED_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "a_proj", "b_proj", "g_proj"})
"""Neighbours of these names in a module are one linear layer of Megatron-Core, which has one adapter."""

WITHOUT_ADAPTERS = frozenset({"router", "shared_expert_gate"})
"""Products of Megatron-Core that are no linear layers of a module."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
"""The projections that one product may compute together."""

ALL_LINEAR = "all-linear"
"""The target that stands for every linear layer of the model's layers."""

BLOCK, SECOND_BLOCK, CODE_BYTES = 64, 256, 1024
"""bitsandbytes: weights per scale; scales per scale of scales; bytes of the table that decodes scales."""


def stored_bytes(base: Base, rows: Number, columns: Number) -> Number:
    """Returns the bytes of a quantized matrix with scales. rows: output size. columns: input size."""
    if base == "int8":
        return rows * columns + 4 * rows  # a scale in fp32 per row
    return nf4_bytes(rows * columns, base == "nf4-dq")


def nf4_bytes(weights: Number, double_quantized: bool) -> Number:
    """Returns the bytes of a 4-bit matrix: two weights per byte, and an fp32 scale per block of 64.

    double_quantized: whether the scales are quantised: one byte each, an fp32 scale per 256 of them, the table that
        decodes them, and their mean.
    """
    blocks, codes = ceil_div(weights, BLOCK), ceil_div(weights, 2)
    if not double_quantized:
        return codes + 4 * blocks
    return codes + blocks + 4 * ceil_div(blocks, SECOND_BLOCK) + CODE_BYTES + 4
