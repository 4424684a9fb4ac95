"""Lion of bitsandbytes with one fp32 state (Chen 2023, arXiv:2302.06675)."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("lion", 1, 32, "lion-32bit")
