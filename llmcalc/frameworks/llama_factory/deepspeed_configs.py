"""The DeepSpeed configs shipped with LLaMA-Factory (0.9.6.dev0, examples/deepspeed/)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMON: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "zero_allow_untested_optimizer": True,
    "fp16": {"enabled": "auto"},
    "bf16": {"enabled": "auto"},
}

WHOLE_PARAMETERS: dict[str, Any] = {
    "allgather_partitions": True,
    "allgather_bucket_size": 500_000_000,
    "overlap_comm": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 500_000_000,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}

STAGE_3: dict[str, Any] = {
    "stage": 3,
    "overlap_comm": False,
    "contiguous_gradients": True,
    "sub_group_size": 1_000_000_000,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1_000_000_000,
    "stage3_max_reuse_distance": 1_000_000_000,
}

ON_HOST: dict[str, Any] = {"device": "cpu", "pin_memory": True}

DEEPSPEED_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    f"examples/deepspeed/ds_{name}_config.json": {**COMMON, "zero_optimization": zero}
    for name, zero in {
        "z0": {"stage": 0, **WHOLE_PARAMETERS},
        "z2": {"stage": 2, **WHOLE_PARAMETERS},
        "z2_offload": {"stage": 2, **WHOLE_PARAMETERS, "offload_optimizer": ON_HOST},
        "z3": STAGE_3,
        "z3_offload": {**STAGE_3, "offload_optimizer": ON_HOST, "offload_param": ON_HOST},
    }.items()
}
"""Path in the user's folder → tables, as far as they change memory."""
