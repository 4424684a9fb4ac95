"""The context length that a model's config states to engines, in positions or as `model_max_length`."""

from __future__ import annotations

from ...costs.context_length import longest_sequence
from ...sources.preset import Preset
from .rank import architectures

CLASSES_WITH_MODEL_MAX_LENGTH = "Cohere"
"""Beginning of the names of classes whose config has `model_max_length` too, which replaces the positions."""


def stated_length(preset: Preset) -> int | None:
    """Returns the context length in tokens that the config states, preferably as `model_max_length`; else None."""
    model_max_length = (preset.config or {}).get("model_max_length")
    return model_max_length if isinstance(model_max_length, int) else longest_sequence(preset.model)


def has_unknown_length(preset: Preset) -> bool:
    """Whether the context length is unknown: the model's class has `model_max_length`, and no config states it."""
    return preset.config is None and any(
        class_name.startswith(CLASSES_WITH_MODEL_MAX_LENGTH) for class_name in architectures(preset)
    )
