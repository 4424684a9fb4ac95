from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

OURO: dict[str, Any] = {"model_type": "ouro", **COMMON_GROUPED, "num_hidden_layers": 2, "max_position_embeddings": 64}

LOOPCODER: dict[str, Any] = {
    "model_type": "iquestloopcoder",
    **{name: value for name, value in OURO.items() if name != "model_type"},
    "head_dim": 8,
    "loop_num": 2,
    "loop_window_size": 4,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "OuroForCausalLM": [
        {**OURO, "total_ut_steps": 3, "early_exit_threshold": 1.0, "layer_types": ["full_attention"] * 2},
        {**OURO, "total_ut_steps": 1, "head_dim": 16, "tie_word_embeddings": True},
    ],
    "NanbeigeForCausalLM": [
        {**OURO, "model_type": "nanbeige", "num_loops": 2, "kv_channels": 8, "loop_loss_weights": []},
        {
            **OURO,
            "model_type": "nanbeige",
            "loop_loss_weights": [0.5, 0.5],
            "skip_loop_final_norm": True,
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
    ],
    "IQuestLoopCoderForCausalLM": [
        LOOPCODER,
        {**LOOPCODER, "head_dim": 16, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
    ],
}
