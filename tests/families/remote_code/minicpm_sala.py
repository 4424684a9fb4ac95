from __future__ import annotations

from typing import Any

from tests.families.sizes import COMMON_GROUPED

SALA: dict[str, Any] = {
    "model_type": "minicpm_sala",
    **COMMON_GROUPED,
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
