"""The DeepSpeed configs shipped with LLaMA-Factory (0.9.6.dev0, examples/deepspeed/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..launch.deepspeed_auto_values import AUTO_BATCH, AUTO_BUCKETS, AUTO_FORMATS

COMMON_FIELDS: Mapping[str, Any] = {"zero_allow_untested_optimizer": True, **AUTO_FORMATS, **AUTO_BATCH}

UNSHARDED_PARAMETER_FIELDS: dict[str, Any] = {
    "allgather_partitions": True,
    "allgather_bucket_size": 500_000_000,
    "overlap_comm": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 500_000_000,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}

STAGE_3_FIELDS: dict[str, Any] = {
    "stage": 3,
    "overlap_comm": False,
    "contiguous_gradients": True,
    "sub_group_size": 1_000_000_000,
    **AUTO_BUCKETS,
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
}

CPU_OFFLOAD: dict[str, Any] = {"device": "cpu", "pin_memory": True}

DEEPSPEED_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    f"examples/deepspeed/ds_{name}_config.json": {**COMMON_FIELDS, "zero_optimization": zero}
    for name, zero in {
        "z0": {"stage": 0, **UNSHARDED_PARAMETER_FIELDS},
        "z2": {"stage": 2, **UNSHARDED_PARAMETER_FIELDS},
        "z2_offload": {"stage": 2, **UNSHARDED_PARAMETER_FIELDS, "offload_optimizer": CPU_OFFLOAD},
        "z3": STAGE_3_FIELDS,
        "z3_offload": {**STAGE_3_FIELDS, "offload_optimizer": CPU_OFFLOAD, "offload_param": CPU_OFFLOAD},
    }.items()
}
"""Path of a shipped config → its tables, with the keys that change memory."""
