from __future__ import annotations

SMALL = {"vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 3}

SHAPES = {
    "RwkvForCausalLM": [
        {"model_type": "rwkv", **SMALL},
        {
            "model_type": "rwkv",
            **SMALL,
            "intermediate_size": 40,
            "attention_hidden_size": 32,
            "tie_word_embeddings": True,
            "rescale_every": 2,
        },
    ],
    "RwkvModel": [{"model_type": "rwkv", **SMALL, "num_hidden_layers": 2, "context_length": 64}],
}
