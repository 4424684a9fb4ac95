"""The context length that a model's config states: `model_max_length`, or the number of positions."""

from __future__ import annotations

from ...costs.context_length import longest_sequence
from ...sources.preset import Preset
from .rank import architectures

CLASSES_WITH_MODEL_MAX_LENGTH = "Cohere"
"""Prefixes of class names whose configs may have `model_max_length`, which replaces the number of positions."""


def stated_context_length(preset: Preset) -> int | None:
    """Returns the model's context length in tokens, from `model_max_length` or its positions; None without."""
    model_max_length = (preset.config or {}).get("model_max_length")
    return model_max_length if isinstance(model_max_length, int) else longest_sequence(preset.model)


def has_unknown_context_length(preset: Preset) -> bool:
    """Whether the context length is unknown because the model's config is not available."""
    return preset.config is None and any(
        class_name.startswith(CLASSES_WITH_MODEL_MAX_LENGTH) for class_name in architectures(preset)
    )
