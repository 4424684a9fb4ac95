"""Shapes of the families in `sources/huggingface/families/gemma/t5gemma.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

SIDE = {**SMALL, "head_dim": 12, "sliding_window": 16}
FULL, SLIDING = "full_attention", "sliding_attention"
WIDE = {
    **SIDE,
    "hidden_size": 48,
    "num_key_value_heads": 4,
    "vocab_size": 100,
    "layer_types": [FULL, SLIDING, FULL],
    "attention_bias": True,
}

VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 2,
    "image_size": 24,
    "patch_size": 4,
    "vision_use_head": False,
}
TEXT = {**SIDE, "num_key_value_heads": 2, "num_hidden_layers": 3}
READER = {"text_config": TEXT, "vision_config": VISION, "mm_tokens_per_image": 9}
LISTED = {**TEXT, "attention_bias": True, "layer_types": [SLIDING, FULL, FULL], "sliding_window": 8}
PAIR = {"model_type": "t5gemma2", "encoder": READER, "decoder": {**TEXT, "num_hidden_layers": 7}}
UNLIKE = {
    "model_type": "t5gemma2", "encoder": {**READER, "text_config": LISTED}, "tie_word_embeddings": False,
    "decoder": {**LISTED, "head_dim": 8, "num_key_value_heads": 1, "intermediate_size": 40},
}  # fmt: skip

SHAPES = {
    "T5GemmaForConditionalGeneration": [
        {"model_type": "t5gemma", "encoder": SIDE, "decoder": SIDE, "vocab_size": 96},
        {
            "model_type": "t5gemma",
            "encoder": WIDE,
            "decoder": {**SIDE, "num_hidden_layers": 2},
            "vocab_size": 96,
            "tie_word_embeddings": False,
        },
    ],
    "T5GemmaEncoderModel": [
        {"model_type": "t5gemma", "encoder": WIDE, "decoder": SIDE, "is_encoder_decoder": False, "vocab_size": 96}
    ],
    "T5Gemma2ForConditionalGeneration": [PAIR, UNLIKE],
    "T5Gemma2Model": [PAIR],
}
