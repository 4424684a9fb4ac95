"""Shapes of the families in `sources/huggingface/families/gemma/diffusion_gemma.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

TEXT = {
    "model_type": "diffusion_gemma_text",
    **SMALL,
    "num_hidden_layers": 7,
    "tie_word_embeddings": True,
    "head_dim": 8,
    "global_head_dim": 12,
    "sliding_window": 16,
    "num_experts": 6,
    "top_k_experts": 2,
    "moe_intermediate_size": 20,
}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "DiffusionGemmaEncoderTextModel": [
        TEXT,
        {
            **TEXT,
            "num_hidden_layers": 3,
            "num_global_key_value_heads": 1,
            "layer_types": [SLIDING, FULL, SLIDING],
            "attention_bias": True,
            "use_bidirectional_attention": "vision",
        },
    ],
}
