"""openPangu Ultra MoE: DeepSeek-V3's layers with norms before and after each sublayer.

Source: the file in `Family.source`.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family
from ...parts import Table, dense_or_moe_kinds
from ..deepseek.deepseek import LATENT, ROUTING, SIGMOID, deepseek_decoder, latent_attention, routed_experts


def _read_pangu_ultra_moe(config: Config) -> Table:
    depth, first_expert_layer = config.integer("num_hidden_layers"), config.count("first_k_dense_replace")
    config.require("sandwich_norm", True)
    router: Table = SIGMOID if config.flag("router_enable_expert_bias") else {"router": {"scoring_func": "sigmoid"}}
    model_fields = deepseek_decoder(
        config,
        latent_attention(config),
        routed_experts(config, **router),
        dense_or_moe_kinds(config, depth, first_expert_layer),
    )
    model_fields["decoder"]["block"]["norm_placement"] = "sandwich"
    for layer in model_fields["decoder"].get("variants", {}).values():
        if "norm_placement" in layer:
            layer["norm_placement"] = "sandwich"
    return model_fields


FAMILIES = {
    "pangu_ultra_moe": Family(
        _read_pangu_ultra_moe,
        {
            **LATENT,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "moe_layer_freq": 1,
            "n_shared_experts": None,
            "first_k_dense_replace": 0,
            "sandwich_norm": False,
            "router_enable_expert_bias": False,
        },
        ROUTING,
        aliases={
            "kv_lora_rank": "attention_kv_lora_dim",
            "q_lora_rank": "attention_q_lora_dim",
            "qk_nope_head_dim": "attention_qk_dim",
            "qk_rope_head_dim": "attention_qk_rope_dim",
            "v_head_dim": "attention_v_dim",
            "n_routed_experts": "num_routed_experts",
            "n_shared_experts": "num_shared_experts",
            "first_k_dense_replace": "num_dense_layers",
            "num_nextn_predict_layers": "num_mtp_layers",
        },
        source=f"{VLLM}openpangu.py",
    )
}
