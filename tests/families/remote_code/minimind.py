from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

LATER: dict[str, Any] = {
    "model_type": "minimind",
    **COMMON_GROUPED,
    **{"use_moe": False, "num_experts": 4, "num_experts_per_tok": 1, "max_position_embeddings": 64},
}
EARLIER: dict[str, Any] = {
    **{name: value for name, value in LATER.items() if name != "num_experts"},
    **{"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "scoring_func": "softmax"},
}
FIRST: dict[str, Any] = {
    **{"model_type": "minimind", "vocab_size": 96, "dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2},
    **{"hidden_dim": None, "multiple_of": 16, "max_seq_len": 64, "use_moe": True, "n_routed_experts": 4},
    **{"n_shared_experts": True, "num_experts_per_tok": 2, "scoring_func": "softmax"},
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "MiniMindForCausalLM": [
        {**LATER, "head_dim": 12},
        {**LATER, "use_moe": True, "moe_intermediate_size": 24, "tie_word_embeddings": False},
        EARLIER,
        {**EARLIER, "use_moe": True, "n_shared_experts": 2},
        FIRST,
    ],
}
