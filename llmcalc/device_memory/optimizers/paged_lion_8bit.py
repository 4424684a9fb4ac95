"""Paged Lion of bitsandbytes with one 8-bit state."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("paged-lion-8bit", 1, 8, is_paged=True)
