from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = {
    "model_type": "gpt_oss",
    **COMMON_GROUPED,
    "intermediate_size": 20,
    "num_local_experts": 6,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}

FILTER = {
    **{name: value for name, value in SMALL.items() if name != "model_type"},
    "model_type": "openai_privacy_filter",
    "head_dim": 8,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

SHAPES = {
    "OpenAIPrivacyFilterForTokenClassification": [
        FILTER,
        {**FILTER, "head_dim": 6, "attention_bias": False, "num_labels": 5, "num_experts_per_tok": 3},
    ],
    "OpenAIPrivacyFilterModel": [FILTER],
    "GptOssForCausalLM": [
        SMALL,
        {
            **SMALL,
            "head_dim": 6,
            "attention_bias": False,
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
        },
    ],
    "GptOssModel": [SMALL],
}
