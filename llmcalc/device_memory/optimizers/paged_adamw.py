"""Paged AdamW of bitsandbytes with fp32 states."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("paged-adamw", 2, 32, "paged-adamw-32bit", is_paged=True)
