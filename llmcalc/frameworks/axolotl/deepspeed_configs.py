"""The DeepSpeed configs that axolotl contains (`axolotl fetch deepspeed_configs`; 0.18.0, deepspeed_configs/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..launch.deepspeed_auto_values import AUTO_BATCH, AUTO_BUCKETS, AUTO_FORMATS

BF16_FIELDS: dict[str, Any] = {"bf16": {"enabled": True}}

STAGE_3_FIELDS: dict[str, Any] = {
    "stage": 3,
    "overlap_comm": True,
    "contiguous_gradients": True,
    "sub_group_size": 0,
    **AUTO_BUCKETS,
    "max_live_parameters": 0,
    "max_reuse_distance": 0,
}

STAGE_2_FIELDS: dict[str, Any] = {
    "stage": 2,
    "offload_optimizer": {"device": "cpu"},
    "contiguous_gradients": True,
    "overlap_comm": True,
}

CPU_OFFLOAD: dict[str, Any] = {"device": "cpu", "pin_memory": True}

COMPILE_FIELDS: dict[str, Any] = {"compile": {"disable": False, "backend": "inductor"}}

DEEPSPEED_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    f"deepspeed_configs/{name}.json": {**AUTO_BATCH, **config}
    for name, config in {
        "zero1": {"zero_optimization": {"stage": 1, "overlap_comm": True}, **AUTO_FORMATS},
        "zero1_torch_compile": {
            "zero_optimization": {"stage": 1, "overlap_comm": True},
            **AUTO_FORMATS,
            **COMPILE_FIELDS,
        },
        "zero2": {"zero_optimization": STAGE_2_FIELDS, **AUTO_FORMATS},
        "zero2_torch_compile": {"zero_optimization": STAGE_2_FIELDS, **AUTO_FORMATS, **COMPILE_FIELDS},
        "zero3": {"zero_optimization": STAGE_3_FIELDS, **AUTO_FORMATS},
        "zero3_bf16": {"zero_optimization": STAGE_3_FIELDS, **BF16_FIELDS},
        "zero3_bf16_cpuoffload_params": {
            "zero_optimization": {**STAGE_3_FIELDS, "offload_param": CPU_OFFLOAD},
            **BF16_FIELDS,
        },
        "zero3_bf16_cpuoffload_all": {
            "zero_optimization": {**STAGE_3_FIELDS, "offload_param": CPU_OFFLOAD, "offload_optimizer": CPU_OFFLOAD},
            **BF16_FIELDS,
        },
    }.items()
}
"""Path of a shipped config → its tables, with the keys that change memory."""
