from __future__ import annotations

from typing import Any

MEDUSA: dict[str, Any] = {"model_type": "medusa", "hidden_size": 32, "vocab_size": 96, "num_heads": 3}
SPECULATOR: dict[str, Any] = {"model_type": "mlp_speculator", "emb_dim": 32, "vocab_size": 96, "n_predict": 3}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "MedusaModel": [
        {**MEDUSA, "num_hidden_layers": 2},
        {**MEDUSA, "num_hidden_layers": 1, "medusa_fc_bias": True, "truncated_vocab_size": 40},
        {**MEDUSA, "num_heads": 1, "num_hidden_layers": 1, "original_lm_head": True},
        {**MEDUSA, "num_hidden_layers": 1, "original_lm_head": True},
        {**MEDUSA, "medusa_num_heads": 2, "medusa_num_layers": 1},
    ],
    "MLPSpeculatorPreTrainedModel": [
        SPECULATOR,
        {**SPECULATOR, "inner_dim": 24, "tie_weights": True, "scale_input": True},
        {**SPECULATOR, "n_predict": 1, "inner_dim": 40},
        {**SPECULATOR, "n_predict": 2, "tie_weights": True},
    ],
}
