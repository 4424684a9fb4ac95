"""The context length that vLLM derives from a model's config (vllm/config/model.py, `_get_and_verify_max_len`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...sources.preset import Preset
from ..engines.context_length import stated_context_length
from ..engines.rank import architectures

UNSCALED_TYPES = ("su", "longrope", "llama3")
"""Types of RoPE scaling whose config states a context length that already includes the scaling."""

SCALED_ALREADY = "Gemma3"
"""Prefix of the names of classes whose config states a context length that already includes RoPE scaling."""


def scaled_length(preset: Preset) -> int | None:
    """Returns the context length in tokens with the scaling of rotary positions; None if the model states none.

    Linear and dynamic scaling multiply the model's positions, YaRN its original ones.
    """
    stated_tokens, scaling_factor = stated_context_length(preset), 1.0
    if stated_tokens is None or any(class_name.startswith(SCALED_ALREADY) for class_name in architectures(preset)):
        return stated_tokens
    for rope_scaling in _scaling_tables(preset.rope_parameters or {}):
        rope_type = rope_scaling.get("rope_type", rope_scaling.get("type", "default"))
        if rope_type in UNSCALED_TYPES:
            continue
        scaling_factor = rope_scaling.get("factor", scaling_factor)
        if rope_type == "yarn":
            stated_tokens = rope_scaling.get("original_max_position_embeddings", stated_tokens)
    factor_is_number = isinstance(stated_tokens, int) and isinstance(scaling_factor, int | float)
    return int(stated_tokens * scaling_factor) if factor_is_number else stated_context_length(preset)


def short_rope_length(preset: Preset) -> int | None:
    """Returns the longest length in tokens for LongRoPE's short factors; None for other models."""
    for scaling_table in _scaling_tables(preset.rope_parameters or {}):
        original_length = scaling_table.get("original_max_position_embeddings")
        has_stated_length = preset.config is None or "original_max_position_embeddings" in preset.config
        if (
            scaling_table.get("rope_type", scaling_table.get("type")) in ("su", "longrope")
            and has_stated_length
            and original_length
        ):
            return int(original_length)
    return None


def _scaling_tables(rope_parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the tables of RoPE scaling: one per kind of layer, or a single table for all layers."""
    tables_by_kind = [scaling_table for scaling_table in rope_parameters.values() if isinstance(scaling_table, Mapping)]
    return tables_by_kind if "full_attention" in rope_parameters else [rope_parameters]
