"""Sizes that most families' small configs share: a test of a family states the fields that differ."""

from __future__ import annotations

from typing import Any

COMMON_SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
COMMON_GROUPED: dict[str, Any] = {**COMMON_SMALL, "num_key_value_heads": 2}
"""With two key-value heads, each of two query heads."""

COMMON_VISION: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "patch_size": 4,
}
COMMON_DEPTH: dict[str, Any] = {"depth": 2, "hidden_size": 24, "intermediate_size": 20, "num_heads": 2, "patch_size": 4}
"""Of vision encoders whose fields have the names of Qwen's."""
