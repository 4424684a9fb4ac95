"""The storage of the frozen base weights under low-rank adapters.

QLoRA: Dettmers et al. 2023, arXiv:2305.14314; bitsandbytes/functional.py, `quantize_4bit`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from typing import Literal, TypeAlias

from ..algebra import Number, add, ceil_div

FrozenWeightFormat: TypeAlias = Literal["none", "nf4", "nf4-dq", "int8"]
"""The format of the layers' frozen matrices: the model's number format (`none`), in 4 bits (`nf4`), in 4 bits with
scales that are quantised themselves (`nf4-dq`), or in 8 bits (`int8`, LLM.int8: Dettmers et al. 2022,
arXiv:2208.07339).
"""

Library: TypeAlias = Literal["peft", "torchtune", "litgpt", "mcore-bridge", "megatron-bridge"]
"""The library whose adapters run. All train the same matrices, but differ in casts, copies, and saved and shared
tensors.
"""

PARALLEL_LIBRARIES = frozenset({"mcore-bridge", "megatron-bridge"})
"""Libraries whose adapters run in parallel to Megatron-Core's linear layers; mcore-bridge is ms-swift's library."""

JOINED_PROJECTIONS = frozenset({"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "a_proj", "b_proj", "g_proj"})
"""Projections that Megatron-Core joins with their neighbours in a module to one linear layer, which has one adapter."""

PRODUCTS_WITHOUT_ADAPTERS = frozenset({"router", "shared_expert_gate"})
"""Matrix products that are no linear-layer modules in Megatron-Core, and so get no adapters."""

PROJECTIONS = ("q_proj", "k_proj", "v_proj")
"""The projections that one product may compute together."""

GATE_AND_UP = ("gate_proj", "up_proj")
"""The projections that one product may compute together in a feed-forward network."""

OUTPUT_PROJECTION = "o_proj"
"""The output projection of attention."""

GATED_NETWORK = (*GATE_AND_UP, "down_proj")
"""The linear layers of a gated feed-forward network."""

FUSED_ADAPTER_GROUPS = (PROJECTIONS, (OUTPUT_PROJECTION,), GATED_NETWORK)
"""Linear layers whose adapters one function of `--fused-adapters` runs, if all of a group have adapters."""

SCAN_OUTPUT_PROJECTION = "out_proj"
"""The output projection of Mamba-2's mixer."""

ALL_LINEAR = "all-linear"
"""The adapter target that means every linear layer inside the model's layers."""

BLOCK_WEIGHTS, SECOND_BLOCK_SCALES = 64, 256
"""Block sizes of bitsandbytes: weights per scale, and scales per second-level scale."""

CODE_TABLE_ENTRIES, SCALE_TABLE_ENTRIES = 16, 256
"""fp32 entries of bitsandbytes' two decoding tables: of a matrix's weights, and of the scales."""


def stored_tensors(
    frozen_base: FrozenWeightFormat, row_count: Number, column_count: Number
) -> dict[str, tuple[Number, int]]:
    """Returns the tensors of a quantized matrix: name suffix → (elements, bytes per element), the codes first.

    A byte holds two weights of 4 bits. There is an fp32 scale per block of 64 of them, or one byte where the scales are
    quantised too; these have an fp32 scale per 256, a table and their mean. In 8 bits a row has an fp32 scale.
    Names are those of a checkpoint (bitsandbytes/functional.py, `QuantState.as_dict`; nn/modules.py, `Linear8bitLt`).

    row_count: output size. column_count: input size.
    """
    if frozen_base == "int8":
        return {"": (row_count * column_count, 1), ".SCB": (row_count, 4)}
    block_count = ceil_div(row_count * column_count, BLOCK_WEIGHTS)
    code_tensors = {"": (ceil_div(row_count * column_count, 2), 1), ".quant_map": (CODE_TABLE_ENTRIES, 4)}
    if frozen_base == "nf4":
        return code_tensors | {".absmax": (block_count, 4)}
    nested_scale_count = ceil_div(block_count, SECOND_BLOCK_SCALES)
    nested_scale_tensors = {".nested_absmax": (nested_scale_count, 4), ".nested_quant_map": (SCALE_TABLE_ENTRIES, 4)}
    return code_tensors | {".absmax": (block_count, 1)} | nested_scale_tensors | {".nested_offset": (1, 4)}


def stored_bytes(frozen_base: FrozenWeightFormat, row_count: Number, column_count: Number) -> Number:
    """Returns the bytes of a quantized matrix with scales and tables. row_count, column_count: outputs, inputs."""
    return reduce(
        add,
        (
            element_count * element_bytes
            for element_count, element_bytes in stored_tensors(frozen_base, row_count, column_count).values()
        ),
    )


def has_fused_group(target_names: Iterable[str]) -> bool:
    """Whether adapters of these linear layers, or of all of them, include a whole group of `FUSED_ADAPTER_GROUPS`."""
    targets = {*target_names}
    return ALL_LINEAR in targets or any(targets.issuperset(layer_names) for layer_names in FUSED_ADAPTER_GROUPS)
