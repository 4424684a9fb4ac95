from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

JET: dict[str, Any] = {
    "model_type": "jet_nemotron",
    **COMMON_GROUPED,
    "num_hidden_layers": 4,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "layer_types": ["jet", "attn", "swa", "jet"],
    "efficient_attention_config": {
        "jet": {
            "conv_size": 4,
            "dconv_generator_reduction": 8,
            "dconv_implementation": "triton",
            "expand_v": 2.6666666667,
            "head_dim": 6,
            "mode": "chunk",
            "norm_eps": "1e-5",
            "num_heads": 4,
        },
        "swa": {"window_size": 8},
    },
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "JetNemotronForCausalLM": [
        JET,
        {
            **JET,
            "num_hidden_layers": 3,
            "layer_types": ["jet", "attn", "jet"],
            "tie_word_embeddings": False,
            "efficient_attention_config": {"jet": {"num_heads": 3, "head_dim": 4, "conv_size": 3}},
        },
    ],
}
