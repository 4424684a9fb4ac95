"""Shapes of the families in `sources/huggingface/families/multimodal/moshi.py`."""

from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "ffn_dim": 48,
    "max_position_embeddings": 200,
    "sliding_window": 8,
    "num_codebooks": 3,
}
CODEC: dict[str, Any] = {"model_type": "mimi", "num_hidden_layers": 1, "num_filters": 8}
MOSHI: dict[str, Any] = {
    "model_type": "moshi",
    **SMALL,
    "audio_vocab_size": 10,
    "audio_encoder_config": CODEC,
    "depth_decoder_config": {
        "model_type": "moshi_depth",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "ffn_dim": 8,
    },
}
KYUTAI: dict[str, Any] = {
    "model_type": "kyutai_speech_to_text",
    **SMALL,
    "codebook_vocab_size": 10,
    "audio_pad_token_id": 100,
    "codec_config": CODEC,
}

SHAPES = {
    "MoshiForCausalLM": [MOSHI, {**MOSHI, "num_key_value_heads": None, "head_dim": 10, "hidden_act": "gelu"}],
    "MoshiModel": [MOSHI],
    "KyutaiSpeechToTextForConditionalGeneration": [
        KYUTAI,
        {**KYUTAI, "num_key_value_heads": 4, "head_dim": 6, "hidden_act": "gelu", "num_codebooks": 5},
    ],
    "KyutaiSpeechToTextModel": [KYUTAI],
}
