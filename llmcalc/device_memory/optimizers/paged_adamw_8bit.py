"""Paged AdamW of bitsandbytes with 8-bit states."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("paged-adamw-8bit", 2, 8, is_paged=True)
