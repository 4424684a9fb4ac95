"""Shapes of the families in `sources/huggingface/families/llama/evolla.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

EVOLLA: dict[str, Any] = {
    "model_type": "evolla",
    **COMMON_GROUPED,
    "num_hidden_layers": 5,
    "aligner_num_add_layers": 2,
    "protein_encoder_config": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    },
    "resampler_depth": 1,
    "resampler_num_latents": 3,
}

SHAPES = {
    "EvollaForProteinText2Text": [
        EVOLLA,
        {
            **EVOLLA,
            "num_key_value_heads": 4,
            "attention_bias": True,
            "mlp_bias": True,
            "aligner_enable_bias": False,
            "aligner_ffn_mult": 2,
            "aligner_num_add_layers": 8,
        },
    ],
    "EvollaModel": [EVOLLA],
}
