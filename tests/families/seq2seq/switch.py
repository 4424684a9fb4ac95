from __future__ import annotations

from typing import Any

from . import bart, t5

SWITCH: dict[str, Any] = {
    "model_type": "switch_transformers",
    **t5.SMALL,
    "num_layers": 4,
    "num_decoder_layers": 4,
    "num_experts": 3,
    "num_sparse_encoder_layers": 2,
    "num_sparse_decoder_layers": 2,
}
NLLB: dict[str, Any] = {
    "model_type": "nllb-moe",
    **bart.SMALL,
    "num_experts": 4,
    "encoder_sparse_step": 2,
    "decoder_sparse_step": 2,
}

SHAPES = {
    "SwitchTransformersForConditionalGeneration": [
        SWITCH,
        {
            **SWITCH,
            "num_sparse_encoder_layers": 4,
            "num_sparse_decoder_layers": 1,
            "num_decoder_layers": 3,
            "router_bias": True,
            "router_dtype": "bfloat16",
        },
        {**SWITCH, "num_layers": 1, "num_sparse_encoder_layers": 0, "num_sparse_decoder_layers": 0},
    ],
    "SwitchTransformersModel": [SWITCH],
    "SwitchTransformersEncoderModel": [SWITCH],
    "NllbMoeForConditionalGeneration": [
        NLLB,
        {
            **NLLB,
            **bart.LOPSIDED,
            "encoder_sparse_step": 1,
            "decoder_sparse_step": 0,
            "router_bias": True,
            "router_dtype": "bfloat16",
        },
    ],
    "NllbMoeModel": [NLLB, {**NLLB, "tie_word_embeddings": False}],
}
