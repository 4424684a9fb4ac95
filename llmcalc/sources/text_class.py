"""Multimodal models of which `AutoModelForCausalLM` loads the text model alone."""

from __future__ import annotations

from ..errors import InputError
from .preset import Preset

TYPES_WITH_TEXT_CLASS = frozenset({"emu3", "llama4", "mllama", "qwen3_5", "qwen3_5_moe"})
"""Types of models with encoders whose class is `…ForCausalLM` without them.

Source: transformers/models/auto/modeling_auto.py, `MODEL_FOR_CAUSAL_LM_MAPPING_NAMES`.
"""

TEXT_TYPES = frozenset({"llama4_text", "mllama_text_model", "qwen3_5_text", "qwen3_next"})
"""Model types, as `to_config` names them without encoders, of the text models of multimodal models."""


def has_text_class(preset: Preset) -> bool:
    """Whether `AutoModelForCausalLM` loads the model without its encoders. False for an unknown class."""
    if preset.config is not None:
        return preset.config.get("model_type") in TYPES_WITH_TEXT_CLASS
    from .to_hf import to_config

    try:
        return to_config(preset.model.model_copy(update={"towers": {}}))["model_type"] in TEXT_TYPES
    except InputError:
        return False
