from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = COMMON_GROUPED

SHAPES = {
    "BitNetForCausalLM": [
        {"model_type": "bitnet", **SMALL},
        {
            "model_type": "bitnet",
            **SMALL,
            "num_key_value_heads": None,
            "attention_bias": True,
            "hidden_act": "silu",
            "tie_word_embeddings": True,
        },
    ],
    "NanoChatForCausalLM": [
        {"model_type": "nanochat", **SMALL},
        {
            "model_type": "nanochat",
            **SMALL,
            "num_key_value_heads": None,
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "NanoChatModel": [{"model_type": "nanochat", **SMALL}],
}
