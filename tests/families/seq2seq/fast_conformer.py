"""Shapes of the families in `sources/huggingface/families/seq2seq/fast_conformer.py`."""

from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

ENCODER: dict[str, Any] = {
    "model_type": "parakeet_encoder",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "subsampling_conv_channels": 6,
    "num_mel_bins": 16,
}
WITHOUT_BIASES: dict[str, Any] = {
    **ENCODER,
    "attention_bias": False,
    "convolution_bias": False,
    "conv_kernel_size": 5,
    "subsampling_factor": 4,
    "hidden_act": "gelu",
}
DECODER: dict[str, Any] = {**COMMON_GROUPED, "num_key_value_heads": 4, "head_dim": 8, "max_position_embeddings": 200}
CANARY: dict[str, Any] = {
    "model_type": "canary",
    "vocab_size": 96,
    "encoder_config": ENCODER,
    "decoder_config": {"model_type": "canary_decoder", **DECODER},
}
COHERE: dict[str, Any] = {
    "model_type": "cohere_asr",
    **DECODER,
    "encoder_config": {**ENCODER, "hidden_size": 24},
}

SHAPES = {
    "CanaryForConditionalGeneration": [
        CANARY,
        {
            **CANARY,
            "tie_word_embeddings": False,
            "encoder_config": WITHOUT_BIASES,
            "decoder_config": {**CANARY["decoder_config"], "attention_bias": False, "num_key_value_heads": 2},
        },
    ],
    "CanaryModel": [CANARY],
    "CohereAsrForConditionalGeneration": [
        COHERE,
        {
            **COHERE,
            "tie_word_embeddings": True,
            "encoder_config": WITHOUT_BIASES,
            "hidden_act": "silu",
            "head_dim": 6,
            "num_key_value_heads": 2,
        },
    ],
    "CohereAsrModel": [COHERE],
}
