"""Lion of bitsandbytes with one 8-bit state."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("lion-8bit", 1, 8, "lion8bit")
