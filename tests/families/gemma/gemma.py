"""Shapes of the families in `sources/huggingface/families/gemma/gemma.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

TEXT = {**SMALL, "head_dim": 12, "sliding_window": 16}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "GemmaForCausalLM": [
        {"model_type": "gemma", **SMALL, "head_dim": 12, "hidden_act": "gelu"},
        {
            "model_type": "gemma",
            **SMALL,
            "head_dim": 8,
            "num_key_value_heads": 1,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
    ],
    "Gemma2ForCausalLM": [
        {"model_type": "gemma2", **TEXT},
        {
            "model_type": "gemma2",
            **TEXT,
            "attn_logit_softcapping": None,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "layer_types": [FULL, FULL, SLIDING],
        },
    ],
    "Gemma2Model": [{"model_type": "gemma2", **TEXT}],
    "VaultGemmaForCausalLM": [
        {"model_type": "vaultgemma", **TEXT},
        {
            "model_type": "vaultgemma",
            **TEXT,
            "attention_bias": True,
            "tie_word_embeddings": False,
            "layer_types": [FULL] * 3,
        },
    ],
    "Gemma3ForCausalLM": [
        {"model_type": "gemma3_text", **TEXT, "num_hidden_layers": 8},
        {
            "model_type": "gemma3_text",
            **TEXT,
            "sliding_window_pattern": 2,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        {"model_type": "gemma3_text", **TEXT, "layer_types": [SLIDING, FULL, FULL], "rope_parameters": None},
    ],
    "Gemma3TextModel": [
        {"model_type": "gemma3_text", **TEXT},
        {"model_type": "gemma3_text", **TEXT, "use_bidirectional_attention": True},
    ],
}
