"""Alice AI: Kimi delta attention, gated attention in some layers, block attention residuals and sigmoid routing.

The fields are those of Qwen3-Next. Sources: vLLM's file in `Family.source`, and its configuration class.
"""

from __future__ import annotations

from ...class_defaults import class_defaults, class_fields
from ...code_addresses import VLLM
from ...config import Config
from ...family import Family
from ...parts import Table, attention, gated_experts, layer_table, listed_kinds, offset_rmsnorm, qk_norm_fields, rope
from ..deepseek.deepseek import SIGMOID_ROUTING
from ..recurrent.delta import FAMILIES as DELTA_FAMILIES
from ..recurrent.delta import LINEAR_OR_FULL
from .kimi_k3 import block_residual_decoder

QWEN3_NEXT_FAMILY = DELTA_FAMILIES["qwen3_next"]


def _read_alice_ai(config: Config) -> Table:
    for field_name, expected_value in (
        ("attention_bias", False),
        ("decoder_sparse_step", 1),
        ("router_bias_correction", True),
    ):
        config.require(field_name, expected_value)
    config.require("mlp_only_layers", None, [])
    config.require("router_score_function", "sigmoid")
    if config.count("mtp_num_hidden_layers"):
        config.notes.append("mtp_num_hidden_layers: the multi-token-prediction modules are not counted")
    norm, depth = offset_rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    head_count, head_dim = config.integer("linear_num_value_heads"), config.integer("linear_value_head_dim")
    config.require("linear_num_key_heads", head_count)
    config.require("linear_key_head_dim", head_dim)
    linear_attention: Table = {
        "type": "kimi_delta_attention",
        "linear_num_heads": head_count,
        "linear_head_dim": head_dim,
        "linear_conv_kernel_dim": config.integer("linear_conv_kernel_dim"),
        "norm_eps": config.number("rms_norm_eps"),
    }
    full_attention = attention(
        config, position=rope(config, 0.25), output_gate={"per": "element"}, **qk_norm_fields(norm)
    )
    shared_width = config.count("shared_expert_intermediate_size")
    gate_field: Table = {"shared_expert_gate": True} if shared_width else {}
    experts = gated_experts(config, shared_width=shared_width, **gate_field, **SIGMOID_ROUTING)
    full_period = config.integer("full_attention_interval")
    default_layer_kinds = ["linear" if (layer_index + 1) % full_period else "full" for layer_index in range(depth)]
    layer_changes: dict[str, Table] = {"linear": {}, "full": {"attention": {"type": "attention", **full_attention}}}
    layer_kinds = listed_kinds(config, "layer_types", LINEAR_OR_FULL, default_layer_kinds)
    base_layer: Table = layer_table(linear_attention, experts, norm)
    layers = [(layer_kind, layer_changes[layer_kind]) for layer_kind in layer_kinds]
    return block_residual_decoder(config, base_layer, layers, config.integer("block_attn_res_block_size"))


FAMILIES = {
    "alice_ai": Family(
        _read_alice_ai,
        {
            **class_defaults("qwen3_next"),
            **QWEN3_NEXT_FAMILY.defaults,
            "vocab_size": 129024,
            "max_position_embeddings": 262144,
            "linear_num_key_heads": 32,
            "block_attn_res_block_size": 4,
            "router_score_function": "sigmoid",
            "router_bias_correction": True,
            "mtp_num_hidden_layers": 1,
        },
        QWEN3_NEXT_FAMILY.ignored_fields
        | class_fields("qwen3_next")
        | {"intermediate_size", "kda_allow_negative_eigenvalues", "number_of_conv_states"},
        aliases={"mtp_num_hidden_layers": "num_nextn_predict_layers"},
        source=f"{VLLM}alice_ai.py",
    )
}
