"""AdamW of torchao with 4-bit states (Li 2023, arXiv:2309.01507)."""

from __future__ import annotations

from .torchao import torchao_adamw

OPTIMIZER = torchao_adamw("adamw-4bit-torchao", 4, "adamw-torch-4bit", "ao-adamw-4bit")
