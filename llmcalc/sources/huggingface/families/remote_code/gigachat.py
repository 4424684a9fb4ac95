"""GigaChat 3.5: Qwen3-Next's gated DeltaNet, gated latent attention, and norms that a projection of rank 16 gates.

Each norm of the model is gated, those within latent attention too; factors of queries, latents and norms change no
count. The module of multi-token prediction has latent attention and a dense network.

Sources: vLLM's file in `Family.source`, its module gigachat3_5_mtp.py, and its configuration class.
"""

from __future__ import annotations

from ...code_addresses import VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    Table,
    add_mtp_modules,
    decoder,
    dense_or_moe_kinds,
    float32_rmsnorm,
    glu,
    listed_kinds,
    rmsnorm,
    stack_of_combined_kinds,
)
from ..deepseek.deepseek import LATENT_DEFAULTS, ROUTING_FIELDS, SIGMOID_ROUTING, latent_attention, routed_experts
from ..recurrent.delta import LINEAR_OR_FULL, gated_delta_net

GATE_RANK = 16
"""The rank of the gate of every norm, which the class states."""

NORM_PLACEMENTS = {"pre": "pre", "post": "output", "pre_post": "sandwich"}
"""`layernorm_type` → the placement of the norms around attention and network; null is the class's `pre`."""

GATED_HEADS = ("gated_rmsnorm", "gated_rmsnorm_sigmoid", "gated_rmsnorm_sigmoid_zero_centered")
"""Values of `linear_gating_type` with a norm on each head's output; the remaining value has only a gate."""


def _read_gigachat(config: Config) -> Table:
    """Reads GigaChat 3.5, which has latent attention in the layers of `full_attention_layers` or `layer_types`."""
    for field_name, expected_value in (("use_shared_expert_sigmoid", False), ("nextn_is_sparse", False)):
        config.require(field_name, expected_value, None)
    config.require("linear_gating_type", *GATED_HEADS)
    depth, norm = config.integer("num_hidden_layers"), _norm(config)
    output_gate: Table = {"output_gate": {"per": "element"}} if config.flag("gated_attention") else {}
    full_attention = latent_attention(config, norm=norm, **output_gate)
    ffn_kinds = dense_or_moe_kinds(config, depth, config.count("first_k_dense_replace"))
    block: Table = {
        "attention": gated_delta_net(config),
        "feed_forward": {"type": "mlp", **glu(config)},
        "norm": norm,
        "norm_placement": config.choice(NORM_PLACEMENTS, "layernorm_type") if config.get("layernorm_type") else "pre",
    }
    mixer_changes: Table = {"linear": {}, "full": {"attention": full_attention}}
    ffn_changes: Table = {"dense": {}, "moe": {"feed_forward": routed_experts(config, **SIGMOID_ROUTING)}}
    stack_fields = stack_of_combined_kinds((_mixer_kinds(config, depth), mixer_changes), (ffn_kinds, ffn_changes))
    mtp_fields = add_mtp_modules(config, stack_fields, "mtp", mixer_changes["full"], norm)
    return decoder(config, block, norm, stack=stack_fields, **mtp_fields)


def _norm(config: Config) -> Table:
    eps = config.number("rms_norm_eps")
    zero_centered_norm = float32_rmsnorm(eps, unit_offset=True)
    norms_by_type: dict[str, Table] = {
        "ZeroCenteredGatedNorm": {**zero_centered_norm, "gate_rank": GATE_RANK},
        "ZeroCenteredRMSNorm": zero_centered_norm,
        "LlamaRMSNorm": rmsnorm(eps),
        "RMSNorm": rmsnorm(eps),
    }
    norm: Table = config.choice(norms_by_type, "norm_type")
    return norm


def _mixer_kinds(config: Config, depth: int) -> list[str]:
    if config.get("linear_attention_type") is None:
        return ["full"] * depth
    if not config.has("full_attention_layers"):
        return listed_kinds(config, "layer_types", LINEAR_OR_FULL, ["linear"] * depth)
    full_layers = set(config.integers("full_attention_layers"))
    if full_layers and max(full_layers) >= depth:
        raise config.error("full_attention_layers", sorted(full_layers), f"layers from 0 to {depth - 1}")
    return ["full" if layer_index in full_layers else "linear" for layer_index in range(depth)]


FAMILIES = {
    "gigachat3_5": Family(
        _read_gigachat,
        {
            **LATENT_DEFAULTS,
            "vocab_size": 128256,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "moe_intermediate_size": 2048,
            "num_hidden_layers": 40,
            "num_attention_heads": 64,
            "n_routed_experts": 256,
            "n_shared_experts": 1,
            "num_experts_per_tok": 8,
            "first_k_dense_replace": 3,
            "hidden_act": "silu",
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "norm_type": "ZeroCenteredGatedNorm",
            "layernorm_type": "pre_post",
            "gated_attention": True,
            "use_shared_expert_sigmoid": False,
            "nextn_is_sparse": None,
            "linear_attention_type": "Qwen3NextGatedDeltaNet",
            "linear_gating_type": "gated_rmsnorm_sigmoid_zero_centered",
            "full_attention_layers": None,
            "layer_types": None,
            "linear_key_head_dim": 128,
            "linear_value_head_dim": 128,
            "linear_conv_kernel_dim": 4,
            "linear_num_key_heads": 32,
            "linear_num_value_heads": 64,
            "num_nextn_predict_layers": 0,
        },
        ROUTING_FIELDS
        | field_names("""
            attention_distillation attention_type layernorm_gating_weight linear_attn_o_norm_eps
            linear_sigmoid_gate_scale linear_use_legacy_qkvz_layout linear_use_short_conv norm_topk_prob num_krope_heads
            optimizer_eps output_gate_type swiglu_limit use_mla_scaling_factor
            """),
        has_grouped_router=True,
        source=f"{VLLM}gigachat3_5.py",
    )
}
