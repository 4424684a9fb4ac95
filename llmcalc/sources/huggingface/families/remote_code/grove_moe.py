"""GroveMoE: Qwen3-MoE's layers, with a small adjugate expert beside each pair of experts.

Wu et al. 2025 (arXiv:2508.07785). Source: the modeling file in `Family.source`.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import Table
from ..experts.mixtral import FIELDS_OF_ABSENT_LAYERS, IGNORED_FIELDS, read_qwen3_moe

EXPERTS_PER_GROUP = 2
ADJUGATE_WIDTH = 128
"""Sizes that are fixed in GroveMoE's class, without a config field."""


def _read_grove_moe(config: Config) -> Table:
    model_fields = read_qwen3_moe(config)
    stack_fields = model_fields["decoder"]
    if config.integer("num_experts") % EXPERTS_PER_GROUP:
        raise config.error("num_experts", config.integer("num_experts"), f"a multiple of {EXPERTS_PER_GROUP}")
    layer_configs = [stack_fields["block"], *stack_fields.get("variants", {}).values()]
    for layer_table in layer_configs:
        ffn = layer_table.get("feed_forward", {})
        if ffn.get("type") == "moe":
            adjugate_expert = {**ffn["expert"], "intermediate_size": ADJUGATE_WIDTH}
            ffn |= {"type": "grove_moe", "experts_per_group": EXPERTS_PER_GROUP, "adjugate_expert": adjugate_expert}
    return model_fields


CODE_FOLDER = "https://github.com/inclusionAI/GroveMoE/blob/main/src/transformers-4.51.3/src/transformers"

FAMILIES = {
    "grove_moe": Family(
        _read_grove_moe,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "decoder_sparse_step": 1,
            "mlp_only_layers": None,
            "attention_bias": False,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": False,
        },
        IGNORED_FIELDS | FIELDS_OF_ABSENT_LAYERS | {"max_window_layers"},
        source=f"{CODE_FOLDER}/models/qwen3_moe/modeling_qwen3_moe.py",
    )
}
