from __future__ import annotations

from typing import Any

SALA: dict[str, Any] = {
    "model_type": "minicpm_sala",
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "lightning_nh": 4,
    "lightning_nkv": 4,
    "lightning_head_dim": 12,
    "mixer_types": ["minicpm4", "lightning-attn", "lightning-attn"],
    "use_output_gate": True,
    "use_output_norm": True,
}

SHAPES: dict[str, list[dict[str, Any]]] = {
    "MiniCPMSALAForCausalLM": [
        {**SALA, "attn_use_output_gate": True, "qk_norm": True, "sparse_config": {"dense_len": 8192}},
        {**SALA, "attn_use_rope": False, "lightning_use_rope": False, "attention_bias": True, "head_dim": 16},
    ],
}
