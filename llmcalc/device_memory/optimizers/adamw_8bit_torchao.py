"""AdamW of torchao with 8-bit states."""

from __future__ import annotations

from .torchao import torchao_adamw

OPTIMIZER = torchao_adamw("adamw-8bit-torchao", 8, "adamw-torch-8bit", "ao-adamw-8bit")
