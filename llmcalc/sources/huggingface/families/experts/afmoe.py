"""AFMoE (Arcee's Trinity) and Laguna: gated attention, sliding windows in most layers, DeepSeek-V3's experts.

The score correction is a parameter.

transformers: models/afmoe, models/laguna.
"""

from __future__ import annotations

from ...absent_value import require_present
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    decoder_of_kinds,
    dense_or_moe_kinds,
    float32_rmsnorm,
    gated_experts,
    glu,
    kinds_with_nth_full,
    layer_table,
    listed_kinds,
    qk_norm_fields,
    rmsnorm,
)

CORRECTED_ROUTING: Table = {"router": {"score_correction": "parameter", "scoring_func": "sigmoid"}}


def _routed_experts(config: Config, shared_width: int) -> Table:
    return gated_experts(config, shared_width=shared_width, **CORRECTED_ROUTING)


def _dense_and_expert_ffns(config: Config, layer_kinds: list[str], shared_width: int) -> tuple[list[str], Table]:
    """Returns each layer's FFN kind (`dense` or `moe`) and the FFN of each kind, for `stack_of_combined_kinds`."""
    return layer_kinds, {
        "dense": {},
        "moe": {"feed_forward": _routed_experts(config, shared_width)} if "moe" in layer_kinds else {},
    }


def _read_afmoe(config: Config) -> Table:
    """Reads AFMoE: a norm before and after each sublayer; full-attention layers have no position encoding."""
    depth, norm = config.integer("num_hidden_layers"), float32_rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(
        config, output_gate={"per": "element"}, **attention_biases(config), **qk_norm_fields(norm)
    )
    full_attention_period = config.integer("global_attn_every_n_layers") if config.get("layer_types") is None else depth
    sliding_attention = {"position": attention_table.pop("position"), **_window_field(config)}
    attention_kinds = (
        listed_kinds(config, "layer_types", FULL_OR_SLIDING, kinds_with_nth_full(depth, full_attention_period)),
        {"full": {}, "sliding": {"attention": sliding_attention}},
    )
    layer_kinds = dense_or_moe_kinds(config, depth, config.count("num_dense_layers"))
    shared_width = config.integer("moe_intermediate_size") * config.count("num_shared_experts")
    ffn_kinds = _dense_and_expert_ffns(config, layer_kinds, shared_width)
    block = layer_table(attention_table, glu(config), norm, "sandwich")
    return decoder_of_kinds(config, block, norm, attention_kinds, ffn_kinds)


def _read_laguna(config: Config) -> Table:
    """Reads Laguna, where the number of heads may differ by layer."""
    config.require("moe_apply_router_weight_on_input", False)
    config.require("gating", True, "per-head", "per-element")
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    gate_scope = "element" if config.get("gating") == "per-element" else "head"
    if config.has("gating_types") and set(config.texts("gating_types")) != {f"per_{gate_scope}"}:
        raise config.field_error("gating_types", f"per_{gate_scope} for every layer, as gating says")
    attention_table = attention(
        config,
        output_gate={"per": gate_scope},
        num_key_value_heads=config.integer("num_key_value_heads"),
        **attention_biases(config),
        **qk_norm_fields(norm),
    )
    if config.get("num_attention_heads_per_layer") is None:
        head_counts = [config.integer("num_attention_heads")] * depth
    else:
        head_counts = config.integers("num_attention_heads_per_layer")
    if len(head_counts) != depth or 0 in head_counts:
        raise config.error("num_attention_heads_per_layer", head_counts, f"{depth} positive whole numbers")
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, ["full"] * depth)
    has_varying_heads = len({*zip(attention_kinds, head_counts, strict=True)}) > len({*attention_kinds})
    layer_kinds = [
        f"{kind}{count}" if has_varying_heads else kind
        for kind, count in zip(attention_kinds, head_counts, strict=True)
    ]
    window_changes = {"full": {}, "sliding": _window_field(config)}
    attention_changes = {
        variant_name: {"attention": {"num_attention_heads": head_count, **window_changes[layer_kind]}}
        for variant_name, head_count, layer_kind in zip(layer_kinds, head_counts, attention_kinds, strict=True)
    }
    shared_width = config.count("shared_expert_intermediate_size")
    ffn_kinds = _dense_and_expert_ffns(config, dense_or_moe_kinds(config, depth, 1), shared_width)
    block = layer_table(attention_table, glu(config), norm)
    return decoder_of_kinds(config, block, norm, (layer_kinds, attention_changes), ffn_kinds)


def _window_field(config: Config) -> Table:
    if config.optional_integer("sliding_window") is None:
        return {}
    return {"sliding_window": config.integer("sliding_window")}


FAMILIES = {
    "afmoe": Family(
        _read_afmoe,
        ignored_fields=field_names("""
            load_balance_coeff n_group num_expert_groups num_limited_groups route_norm score_func topk_group
            use_grouped_mm
            """),
    ),
    "laguna": Family(
        _read_laguna,
        ignored_fields=frozenset(
            {
                "partial_rotary_factor",
                "norm_topk_prob",
                "use_bidirectional_attention",
                "decoder_sparse_step",
                "mlp_only_layers",
            }
        ),
        field_writers={
            "gating": lambda s: {"element": "per-element", "head": True}[
                require_present(s.full_attention.output_gate).per
            ],
            "num_attention_heads_per_layer": lambda s: [mixer.num_attention_heads for mixer in s.mixers],
            "mlp_layer_types": "mlp_layer_types",
        },
        modules={"self_attn.gate_proj": "g_proj"},
    ),
}
