"""Huawei's mixtures of experts: openPangu Ultra MoE and Pangu Pro MoE.

openPangu Ultra MoE has DeepSeek-V3's layers with norms before and after each sublayer; Pangu Pro MoE has grouped
queries, biases in all of attention's projections, and a learned weight of each expert's output.

Sources: the files in `Family.source`.
"""

from __future__ import annotations

from ...code_addresses import GITHUB, VLLM
from ...config import Config
from ...family import Family
from ...parts import (
    QKVO_BIASES,
    Table,
    attention,
    biases,
    decoder,
    dense_or_moe_kinds,
    gated_experts,
    layer_table,
    rmsnorm,
)
from ..deepseek.deepseek import (
    LATENT_DEFAULTS,
    ROUTING_FIELDS,
    SIGMOID_ROUTING,
    deepseek_decoder,
    latent_attention,
    routed_experts,
)


def _read_pangu_ultra_moe(config: Config) -> Table:
    depth, first_expert_layer = config.integer("num_hidden_layers"), config.count("first_k_dense_replace")
    config.require("sandwich_norm", True)
    router_enable_expert_bias = config.flag("router_enable_expert_bias")
    router: Table = SIGMOID_ROUTING if router_enable_expert_bias else {"router": {"scoring_func": "sigmoid"}}
    layer_kinds = dense_or_moe_kinds(config, depth, first_expert_layer)
    model_fields = deepseek_decoder(config, latent_attention(config), routed_experts(config, **router), layer_kinds)
    model_fields["decoder"]["block"]["norm_placement"] = "sandwich"
    for layer in model_fields["decoder"].get("variants", {}).values():
        if "norm_placement" in layer:
            layer["norm_placement"] = "sandwich"
    return model_fields


LATER_PRO_FIELDS = ("n_routed_experts", "param_sink_number", "qk_nope_dim", "qk_rope_dim", "v_channels")
"""Fields of a later model whose configs state Pangu Pro MoE's model type; its attention has learned keys and values."""


def _read_pangu_pro_moe(config: Config) -> Table:
    """Reads Pangu Pro MoE of 2025, whose router selects one expert of each of num_experts_per_tok groups."""
    for field_name in LATER_PRO_FIELDS:
        if config.has(field_name):
            raise config.field_error(field_name, "none (a later model of this type, which is not read)")
    config.require("mlp_only_layers", None, [])
    norm, shared_width = rmsnorm(config.number("rms_norm_eps")), config.count("shared_expert_intermediate_size")
    experts = gated_experts(config, shared_width=shared_width, router={"expert_scale": True})
    return decoder(config, layer_table(attention(config, **biases(True, *QKVO_BIASES)), experts, norm), norm)


FAMILIES = {
    "PanguProMoE": Family(
        _read_pangu_pro_moe,
        {
            "vocab_size": 153376,
            "hidden_size": 5120,
            "num_hidden_layers": 48,
            "num_attention_heads": 40,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "moe_intermediate_size": 1344,
            "shared_expert_intermediate_size": 5376,
            "num_experts_per_tok": 8,
            "num_experts": 64,
            "mlp_only_layers": None,
        },
        frozenset({"intermediate_size", "router_aux_loss_coef"}),
        modules={"mlp.expert_scale": "router_scale"},
        source=f"{GITHUB}vllm-project/vllm-ascend vllm_ascend/torchair/models/torchair_pangu_moe.py",
    ),
    "pangu_ultra_moe": Family(
        _read_pangu_ultra_moe,
        {
            **LATENT_DEFAULTS,
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
        ROUTING_FIELDS,
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
    ),
}
