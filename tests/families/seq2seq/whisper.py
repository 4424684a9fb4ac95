from __future__ import annotations

from typing import Any

SMALL: dict[str, Any] = {
    "model_type": "whisper",
    "vocab_size": 96,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_target_positions": 90,
    "max_source_positions": 50,
    "num_mel_bins": 12,
    "pad_token_id": 1,
    "bos_token_id": 1,
    "eos_token_id": 1,
    "decoder_start_token_id": 2,
    "begin_suppress_tokens": None,
}

SHAPES = {
    "WhisperForConditionalGeneration": [
        SMALL,
        {**SMALL, "tie_word_embeddings": False},
        {**SMALL, "encoder_layers": 3, "decoder_layers": 1, "decoder_ffn_dim": 40, "num_mel_bins": 7},
    ],
    "WhisperModel": [SMALL],
    "WhisperForCausalLM": [SMALL, {**SMALL, "tie_word_embeddings": False}],
}
