"""Shapes of the families in `sources/huggingface/families/multimodal/codec_tokens.py`."""

from __future__ import annotations

from typing import Any

from ..llama.llama import SMALL

CSM: dict[str, Any] = {
    "model_type": "csm",
    **{name: size for name, size in SMALL.items() if name != "vocab_size"},
    "vocab_size": 20,
    "text_vocab_size": 96,
    "num_codebooks": 3,
    "codec_config": {"model_type": "mimi", "num_hidden_layers": 1, "num_filters": 8},
    "depth_decoder_config": {"num_codebooks": 3, "vocab_size": 20, "hidden_size": 16, "intermediate_size": 8}
    | {"num_hidden_layers": 1, "num_attention_heads": 2, "backbone_hidden_size": 32},
}
HIGGS: dict[str, Any] = {
    "model_type": "higgs_audio_v2",
    **SMALL,
    "head_dim": 8,
    "num_codebooks": 3,
    "codebook_size": 20,
    "audio_token_id": 200,
    "audio_delay_token_id": 201,
    "pad_token_id": 0,
}

SHAPES = {
    "CsmForConditionalGeneration": [
        {**CSM, "tie_codebooks_embeddings": False},
        {**CSM, "tie_codebooks_embeddings": False, "head_dim": 12, "attention_bias": True, "mlp_bias": True},
    ],
    "HiggsAudioV2ForConditionalGeneration": [
        HIGGS,
        {**HIGGS, "num_key_value_heads": 4, "attention_bias": True, "mlp_bias": True, "num_codebooks": 5},
    ],
    "HiggsAudioV2Model": [HIGGS],
}
