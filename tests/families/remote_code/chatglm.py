from __future__ import annotations

CHATGLM3 = {
    "model_type": "chatglm",
    "padded_vocab_size": 96,
    "hidden_size": 32,
    "num_layers": 2,
    "num_attention_heads": 4,
    "ffn_hidden_size": 48,
    "kv_channels": 8,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "add_qkv_bias": True,
}

SHAPES = {
    "ChatGLMForConditionalGeneration": [
        CHATGLM3,
        {**CHATGLM3, "multi_query_attention": False, "add_bias_linear": True, "rmsnorm": False},
        {
            "model_type": "chatglm",
            "vocab_size": 96,
            "hidden_size": 32,
            "num_layers": 2,
            "num_attention_heads": 4,
            "inner_hidden_size": 128,
            "max_sequence_length": 64,
        },
    ],
}
