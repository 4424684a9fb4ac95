"""Shapes of the families in `sources/huggingface/families/bert/xmod.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_SMALL

SMALL: dict[str, Any] = {
    "model_type": "xmod",
    **COMMON_SMALL,
    "max_position_embeddings": 90,
    "languages": ["en_XX", "de_DE", "fr_XX"],
    "default_language": "en_XX",
}

SHAPES = {
    "XmodForMaskedLM": [
        SMALL,
        {**SMALL, "pre_norm": True, "adapter_layer_norm": True, "tie_word_embeddings": False},
        {**SMALL, "adapter_reuse_layer_norm": False, "adapter_reduction_factor": 5, "default_language": "fr_XX"},
        {**SMALL, "pre_norm": True, "ln_before_adapter": False, "languages": ["en_XX"]},
    ],
    "XmodForCausalLM": [{**SMALL, "is_decoder": True}],
    "XmodForSequenceClassification": [{**SMALL, "num_labels": 3}],
    "XmodForTokenClassification": [SMALL],
    "XmodModel": [SMALL],
}
