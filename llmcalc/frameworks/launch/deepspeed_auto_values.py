"""Resolves the value `auto` in DeepSpeed configs, as transformers does from the Trainer's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AUTO = "auto"

AUTO_BATCH: Mapping[str, Any] = {
    "train_batch_size": AUTO,
    "train_micro_batch_size_per_gpu": AUTO,
    "gradient_accumulation_steps": AUTO,
    "gradient_clipping": AUTO,
}

AUTO_FORMATS: Mapping[str, Any] = {"bf16": {"enabled": AUTO}, "fp16": {"enabled": AUTO}}

AUTO_BUCKETS: Mapping[str, Any] = {
    "reduce_bucket_size": AUTO,
    "stage3_prefetch_bucket_size": AUTO,
    "stage3_param_persistence_threshold": AUTO,
}
