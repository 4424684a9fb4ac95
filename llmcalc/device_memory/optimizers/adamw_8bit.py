"""AdamW of bitsandbytes with 8-bit states."""

from __future__ import annotations

from .bitsandbytes import bitsandbytes_optimizer

OPTIMIZER = bitsandbytes_optimizer("adamw-8bit", 2, 8, "adam8bit", "adamw8bit", "adam-8bit", "adamw-bnb-8bit")
