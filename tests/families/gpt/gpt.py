from __future__ import annotations

SMALL = {"vocab_size": 96, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 80}
NEOX = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
JAPANESE = {"vocab_size": 96, "hidden_size": 32, "num_attention_heads": 4}
NEO = {"vocab_size": 96, "hidden_size": 32, "num_heads": 4, "max_position_embeddings": 80}

SHAPES = {
    "OpenAIGPTLMHeadModel": [
        {"model_type": "openai-gpt", **SMALL},
        {"model_type": "openai-gpt", **SMALL, "afn": "relu", "tie_word_embeddings": False},
    ],
    "GPT2LMHeadModel": [
        {"model_type": "gpt2", **SMALL},
        {
            "model_type": "gpt2",
            "vocab_size": 96,
            "hidden_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 3,
            "max_position_embeddings": 70,
            "n_inner": 40,
            "activation_function": "relu",
            "reorder_and_upcast_attn": True,
            "tie_word_embeddings": False,
        },
        {"model_type": "gpt-sw3", **SMALL},
        {"model_type": "gpt-sw3", **SMALL, "n_inner": 40, "activation_function": "relu", "tie_word_embeddings": False},
    ],
    "GPT2DoubleHeadsModel": [{"model_type": "gpt2", **SMALL}],
    "OpenAIGPTDoubleHeadsModel": [{"model_type": "openai-gpt", **SMALL, "tie_word_embeddings": False}],
    "GPT2ForQuestionAnswering": [{"model_type": "gpt2", **SMALL, "num_labels": 3}],
    "GPT2Model": [{"model_type": "gpt2", **SMALL}],
    "GPTBigCodeForCausalLM": [
        {"model_type": "gpt_bigcode", **SMALL},
        {"model_type": "gpt_bigcode", **SMALL, "multi_query": False, "n_inner": 40, "tie_word_embeddings": False},
    ],
    "GPTNeoForCausalLM": [
        {
            "model_type": "gpt_neo",
            **NEO,
            "num_layers": 4,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 16,
        },
        {
            "model_type": "gpt_neo",
            **NEO,
            "num_layers": 3,
            "attention_types": [[["global"], 2], [["local"], 1]],
            "window_size": 16,
            "intermediate_size": 40,
            "tie_word_embeddings": False,
        },
    ],
    "GPTJForCausalLM": [
        {"model_type": "gptj", **SMALL, "rotary_dim": 4},
        {"model_type": "gptj", **SMALL, "rotary_dim": 8, "n_inner": 40, "tie_word_embeddings": True},
    ],
    "GPTJModel": [{"model_type": "gptj", **SMALL, "rotary_dim": 4}],
    "CodeGenForCausalLM": [
        {"model_type": "codegen", **SMALL, "rotary_dim": 4, "n_ctx": 80},
        {"model_type": "codegen", **SMALL, "n_head": 8, "rotary_dim": 2, "n_inner": 40, "tie_word_embeddings": True},
    ],
    "GPTNeoXForCausalLM": [
        {"model_type": "gpt_neox", **NEOX, "rotary_pct": 0.5, "rotary_emb_base": 10000},
        {
            "model_type": "gpt_neox",
            **NEOX,
            "use_parallel_residual": False,
            "attention_bias": False,
            "tie_word_embeddings": True,
        },
    ],
    "GPTNeoXJapaneseForCausalLM": [
        {"model_type": "gpt_neox_japanese", **JAPANESE, "num_hidden_layers": 3},
        {
            "model_type": "gpt_neox_japanese",
            **JAPANESE,
            "num_hidden_layers": 1,
            "intermediate_multiple_size": 3,
            "hidden_act": "relu",
            "rotary_pct": 0.5,
            "rotary_emb_base": 10000,
            "tie_word_embeddings": False,
        },
    ],
    "GPTNeoXJapaneseModel": [{"model_type": "gpt_neox_japanese", **JAPANESE, "num_hidden_layers": 2}],
}
