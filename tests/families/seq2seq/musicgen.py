"""Shapes of the families in `sources/huggingface/families/seq2seq/musicgen.py`."""

from __future__ import annotations

from typing import Any

from . import t5

CODEC: dict[str, Any] = {"model_type": "encodec", "num_filters": 2, "num_residual_layers": 1, "codebook_dim": 8}
SMALL: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 48,
    "max_position_embeddings": 200,
    "pad_token_id": 96,
    "bos_token_id": 96,
    "num_codebooks": 3,
}
DECODER: dict[str, Any] = {"model_type": "musicgen_decoder", **SMALL}
MELODY: dict[str, Any] = {"model_type": "musicgen_melody_decoder", **SMALL}
T5 = next(shape for shapes in t5.SHAPES.values() for shape in shapes if shape["model_type"] == "t5")
MUSICGEN: dict[str, Any] = {"model_type": "musicgen", "text_encoder": T5, "audio_encoder": CODEC, "decoder": DECODER}

SHAPES = {
    "MusicgenForConditionalGeneration": [
        MUSICGEN,
        {**MUSICGEN, "text_encoder": {**T5, "d_model": 24}, "decoder": {**DECODER, "num_codebooks": 4}},
    ],
    "MusicgenForCausalLM": [DECODER, {**DECODER, "activation_function": "relu", "num_codebooks": 8, "ffn_dim": 40}],
    "MusicgenModel": [DECODER],
    "MusicgenMelodyForCausalLM": [MELODY, {**MELODY, "activation_function": "relu", "num_codebooks": 8}],
    "MusicgenMelodyModel": [MELODY],
}
