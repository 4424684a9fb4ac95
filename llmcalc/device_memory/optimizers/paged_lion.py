"""Paged Lion of bitsandbytes with one fp32 state."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("paged-lion", 1, 32, "paged-lion-32bit", is_paged=True)
