from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = COMMON_GROUPED

SHAPES = {
    "LlamaForCausalLM": [
        {"model_type": "internlm3", **SMALL, "head_dim": 8, "qkv_bias": False, "bias": False},
        {
            "model_type": "internlm3",
            **SMALL,
            "head_dim": None,
            "qkv_bias": True,
            "bias": True,
            "tie_word_embeddings": True,
        },
        {
            "model_type": "internlm3",
            **SMALL,
            "head_dim": 6,
            "num_key_value_heads": None,
            "attention_bias": True,
            "mlp_bias": True,
        },
        {"model_type": "iquestcoder", **SMALL, "head_dim": 8, "use_sliding_window": False, "clip_qkv": None},
        {
            "model_type": "iquestcoder",
            **SMALL,
            "head_dim": None,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
}
