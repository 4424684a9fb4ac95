from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = COMMON_GROUPED

SHAPES = {
    "Phi3ForCausalLM": [
        {"model_type": "phi4_multimodal", **SMALL, "pad_token_id": 0, "bos_token_id": 0},
        {
            "model_type": "phi4_multimodal",
            **SMALL,
            "num_key_value_heads": None,
            "sliding_window": 16,
            "tie_word_embeddings": True,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "partial_rotary_factor": 0.5,
        },
    ],
}
