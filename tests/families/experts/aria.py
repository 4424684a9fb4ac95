"""Shapes of the families in `sources/huggingface/families/experts/aria.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

EXPERTS = {"moe_num_experts": 6, "moe_topk": 3}
OTHERWISE = {
    "num_key_value_heads": 4,
    "head_dim": 12,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": True,
}

SHAPES = {
    "AriaTextForCausalLM": [
        {"model_type": "aria_text", **SMALL, **EXPERTS},
        {"model_type": "aria_text", **SMALL, **EXPERTS, **OTHERWISE, "moe_num_shared_experts": 1, "hidden_act": "gelu"},
    ],
    "AriaTextModel": [{"model_type": "aria_text", **SMALL, **EXPERTS}],
    "Emu3ForCausalLM": [
        {"model_type": "emu3_text_model", **SMALL, "pad_token_id": 0},
        {"model_type": "emu3_text_model", **SMALL, **OTHERWISE, "pad_token_id": 0},
    ],
    "Emu3TextModel": [{"model_type": "emu3_text_model", **SMALL, "pad_token_id": 0}],
}
