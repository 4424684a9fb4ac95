from __future__ import annotations

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 80,
}
OPT = {"model_type": "opt", **SMALL, "ffn_dim": 48}
XGLM = {
    "model_type": "xglm",
    "vocab_size": 96,
    "max_position_embeddings": 80,
    "d_model": 32,
    "ffn_dim": 48,
    "num_layers": 3,
    "attention_heads": 4,
}

SHAPES = {
    "OPTForCausalLM": [
        OPT,
        {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24, "enable_bias": False},
        {
            **OPT,
            "_remove_final_layer_norm": True,
            "layer_norm_elementwise_affine": False,
            "word_embed_proj_dim": 16,
            "tie_word_embeddings": False,
        },
    ],
    "OPTModel": [OPT, {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}],
    "OPTForSequenceClassification": [{**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}],
    "OPTForQuestionAnswering": [{**OPT, "word_embed_proj_dim": 24}],
    "XGLMForCausalLM": [
        XGLM,
        {**XGLM, "attention_heads": 2, "activation_function": "relu", "tie_word_embeddings": False},
    ],
    "XGLMModel": [XGLM],
    "BioGptForCausalLM": [
        {"model_type": "biogpt", **SMALL, "intermediate_size": 48},
        {
            "model_type": "biogpt",
            **SMALL,
            "intermediate_size": 40,
            "hidden_act": "relu",
            "num_attention_heads": 2,
            "tie_word_embeddings": False,
        },
    ],
}
