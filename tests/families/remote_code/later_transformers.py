"""Shapes of the families in `sources/huggingface/families/remote_code/later_transformers.py`."""

from __future__ import annotations

from typing import Any

from ..deepseek.hy_v4 import HY
from ..llama.llama import SMALL

APERTUS: dict[str, Any] = {"model_type": "apertus1p5_text", **SMALL, "tie_word_embeddings": False}

LARA: dict[str, Any] = {
    "model_type": "lara_mini",
    **{name: size for name, size in SMALL.items() if name != "intermediate_size"},
    "num_hidden_layers": 6,
    "head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 10,
    "moe_intermediate_size": 12,
    "shared_expert_intermediate_size": 20,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 10,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "Apertus1p5TextForCausalLM": [APERTUS, {**APERTUS, "output_vocab_size": 70}],
    "Apertus1p5ForConditionalGeneration": [
        {
            "model_type": "apertus1p5",
            "text_config": APERTUS,
            "vision_config": {"model_type": "apertus1p5_vision_tokenizer"},
            "audio_config": {"model_type": "wavtokenizer_encoder"},
        }
    ],
    "HYV4VLTextModel": [
        {**HY, "model_type": "hy_v4_vl_text"},
        {**HY, "model_type": "hy_v4_vl_text", "hc_mult": 3, "mlp_layer_types": ["sparse", "dense", "sparse"]},
    ],
    "HYV4VLForConditionalGeneration": [
        {
            "model_type": "hy_v4_vl",
            "text_config": {**HY, "model_type": "hy_v4_vl_text"},
            "vision_config": {"model_type": "hy_v4_vl_vision"},
        }
    ],
    "LaraMiniForCausalLM": [
        LARA,
        {
            **LARA,
            "tie_word_embeddings": False,
            "attention_bias": True,
            "layer_types": ["full_attention", "linear_attention"] * 3,
        },
    ],
}
