from __future__ import annotations

from tests.families.sizes import COMMON_GROUPED

SMALL = COMMON_GROUPED

SHAPES = {
    "LlamaForCausalLM": [
        {"model_type": "llama", **SMALL},
        {
            "model_type": "llama",
            **SMALL,
            "num_key_value_heads": None,
            "head_dim": 16,
            "attention_bias": True,
            "mlp_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "LlamaForSequenceClassification": [
        {"model_type": "llama", **SMALL, "id2label": {"0": "a", "1": "b", "2": "c"}, "pad_token_id": 0}
    ],
    "LlamaForTokenClassification": [{"model_type": "llama", **SMALL}],
    "LlamaModel": [{"model_type": "llama", **SMALL}],
    "MistralForCausalLM": [
        {"model_type": "mistral", **SMALL},
        {"model_type": "mistral", **SMALL, "sliding_window": None, "tie_word_embeddings": True},
        {"model_type": "mistral", **SMALL, "sliding_window": 16},
    ],
    "Qwen2ForCausalLM": [
        {"model_type": "qwen2", **SMALL},
        {
            "model_type": "qwen2",
            **SMALL,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "tie_word_embeddings": True,
        },
    ],
    "Qwen3ForCausalLM": [
        {"model_type": "qwen3", **SMALL},
        {"model_type": "qwen3", **SMALL, "head_dim": 8, "attention_bias": True, "tie_word_embeddings": True},
    ],
    "CwmForCausalLM": [
        {"model_type": "cwm", **SMALL, "num_hidden_layers": 5, "sliding_window": 16},
        {
            "model_type": "cwm",
            **SMALL,
            "head_dim": 12,
            "num_key_value_heads": 4,
            "sliding_window": 8,
            "mlp_bias": True,
            "tie_word_embeddings": True,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ],
    "CwmModel": [{"model_type": "cwm", **SMALL, "sliding_window": 16}],
}
