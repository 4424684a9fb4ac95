"""Shapes of the families in `sources/huggingface/families/deepseek/kolibri.py`."""

from __future__ import annotations

from ..llama.llama import SMALL

EXPERTS = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 20,
    "shared_expert_intermediate_size": 24,
    "head_dim": 12,
}
KOLIBRI = {**{k: v for k, v in SMALL.items() if k != "intermediate_size"}, **EXPERTS}
FULL, SLIDING = "full_attention", "sliding_attention"

SHAPES = {
    "Kolibri1ForCausalLM": [
        {"model_type": "kolibri1", **KOLIBRI, "num_hidden_layers": 6, "sliding_window": 16},
        {
            "model_type": "kolibri1",
            **KOLIBRI,
            "sliding_window": 8,
            "num_local_experts": 5,
            "layer_types": [FULL, SLIDING, FULL],
            "tie_word_embeddings": True,
        },
    ],
    "Kolibri1Model": [{"model_type": "kolibri1", **KOLIBRI, "sliding_window": 16}],
    "FlintForCausalLM": [
        {"model_type": "flint", **SMALL, **EXPERTS, "num_hidden_layers": 7, "sliding_window": 16},
        {
            "model_type": "flint",
            **SMALL,
            **EXPERTS,
            "num_hidden_layers": 4,
            "sliding_window": 8,
            "layer_types": [SLIDING, FULL, SLIDING, FULL],
            "mlp_only_layers": [],
            "decoder_sparse_step": 2,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        {"model_type": "flint", **SMALL, **EXPERTS, "sliding_window": 16, "mlp_only_layers": []},
    ],
    "FlintModel": [{"model_type": "flint", **SMALL, **EXPERTS, "sliding_window": 16}],
}
