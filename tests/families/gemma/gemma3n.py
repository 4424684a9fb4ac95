"""Shapes of the families in `sources/huggingface/families/gemma/gemma3n.py`.

Sparse activation has no weights and does not run without data, so no shape has it.
"""

from __future__ import annotations

from ..llama.llama import SMALL

TEXT = {
    "model_type": "gemma3n_text",
    **SMALL,
    "head_dim": 8,
    "sliding_window": 16,
    "vocab_size_per_layer_input": 90,
    "hidden_size_per_layer_input": 10,
    "laurel_rank": 6,
    "num_kv_shared_layers": 2,
}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "Gemma3nForCausalLM": [
        {**TEXT, "num_hidden_layers": 7},
        {
            **TEXT,
            "num_hidden_layers": 4,
            "layer_types": [SLIDING, FULL] * 2,
            "intermediate_size": [40, 48, 40, 56],
            "altup_num_inputs": 3,
            "attention_bias": True,
            "tie_word_embeddings": False,
        },
        {**TEXT, "num_kv_shared_layers": 0, "altup_correct_scale": False},
    ],
    "Gemma3nTextModel": [{**TEXT, "num_hidden_layers": 7}],
}
