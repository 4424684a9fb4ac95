"""Cohere's Command models: one LayerNorm per layer, before parallel attention and FFN.

cohere (Command R): QK-norm per head in R+.
cohere2 (Command A, R7B): sliding windows with RoPE, full layers without positions.
cohere2_moe: experts, after optional dense layers.
cohere_compass: positions by kind of layer.
transformers: models/cohere, cohere2, cohere2_moe, cohere_compass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...absent_value import AbsentValue
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    decoder,
    glu,
    kinds_with_nth_full,
    layer_pattern,
    layer_table,
    layernorm,
    listed_kinds,
    moe,
    qk_norm_fields,
    rmsnorm,
    rope,
    sliding_stack,
    stack_of_variants,
)

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues


def _parallel_decoder(
    config: Config, token_mixer: Table, feed_forward: Table, norm: Table, stack_fields: Table | None = None
) -> Table:
    block = layer_table(token_mixer, feed_forward, norm, parallel="shared")
    return decoder(config, block, norm, stack=stack_fields)


def _layer_norm(config: Config) -> Table:
    return layernorm(config.number("layer_norm_eps"), bias=False, float32_product=True)


def _read_cohere(config: Config) -> Table:
    norm = _layer_norm(config)
    use_qk_norm = config.get("use_qk_norm")
    qk_norms = qk_norm_fields(norm, "per_head") if use_qk_norm is not None and config.flag("use_qk_norm") else {}
    return _parallel_decoder(config, attention(config, **attention_biases(config), **qk_norms), glu(config), norm)


def _read_cohere2(config: Config) -> Table:
    config.require("use_qk_norm", None, False)
    depth = config.integer("num_hidden_layers")
    layer_kinds = kinds_with_nth_full(depth, config.optional_integer("sliding_window_pattern") or 4)
    attention_table = attention(config, **attention_biases(config))
    if config.optional_integer("sliding_window") is None:
        del attention_table["position"]
    stack_fields = sliding_stack(config, layer_kinds, full_fields={"position": "none"})
    return _parallel_decoder(config, attention_table, glu(config), _layer_norm(config), stack_fields)


def _read_cohere2_moe(config: Config) -> Table:
    config.require("use_qk_norm", None, False)
    depth, dense_layer_count = config.integer("num_hidden_layers"), config.count("first_k_dense_replace")
    if dense_layer_count > depth:
        raise config.error("first_k_dense_replace", dense_layer_count, f"at most num_hidden_layers ({depth})")
    dense_period = config.integer("prefix_dense_sliding_window_pattern")
    full_attention_period = config.optional_integer("sliding_window_pattern") or 4
    window_size = config.optional_integer("sliding_window")
    default_layer_kinds = [
        *kinds_with_nth_full(dense_layer_count, dense_period),
        *kinds_with_nth_full(depth - dense_layer_count, full_attention_period),
    ]
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    ffn_kinds = listed_kinds(
        config,
        "mlp_layer_types",
        {"dense": "dense", "sparse": "sparse"},
        ["dense"] * dense_layer_count + ["sparse"] * (depth - dense_layer_count),
    )
    shared_expert_count = config.count("num_shared_experts")
    experts = moe(
        config.integer("num_experts"),
        config.integer("num_experts_per_tok"),
        glu(config),
        glu(config, ffn_width=shared_expert_count * config.integer("intermediate_size"))
        if shared_expert_count
        else None,
        router={"scoring_func": config.choice({"softmax": "softmax", "sigmoid": "sigmoid"}, "expert_selection_fn")},
    )
    dense_ffn = {"type": "mlp", **glu(config, ffn_width=config.optional_integer("prefix_dense_intermediate_size"))}
    layer_variants: Table = {}
    for attention_kind, ffn_kind in dict.fromkeys(zip(attention_kinds, ffn_kinds, strict=True)):
        window_fields: Table = (
            {} if attention_kind == "full" or window_size is None else {"sliding_window": window_size}
        )
        has_rope = bool(window_fields) or (ffn_kind == "dense" and dense_period == 1)
        layer_changes: Table = window_fields if has_rope else {"position": "none"}
        layer_variants[f"{ffn_kind}_{attention_kind}"] = {
            "attention": layer_changes,
            **({"feed_forward": dense_ffn} if ffn_kind == "dense" else {}),
        }
    norm = rmsnorm(config.number("rms_norm_eps")) if config.get("rms_norm_eps") is not None else _layer_norm(config)
    kind_pattern = layer_pattern(
        [f"{ffn_kind}_{attention_kind}" for attention_kind, ffn_kind in zip(attention_kinds, ffn_kinds, strict=True)]
    )
    attention_table = attention(config, **attention_biases(config))
    return _parallel_decoder(config, attention_table, experts, norm, {"variants": layer_variants, **kind_pattern})


def _read_cohere_compass(config: Config) -> Table:
    """Reads Cohere Compass: `rope_parameters` has a table per kind of layer, or null for no positions."""
    rope_parameters = config.config_fields.get("rope_parameters")
    rope_tables = rope_parameters if isinstance(rope_parameters, dict) else {}
    window_size = config.optional_integer("sliding_window")
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, ["full"] * config.integer("num_hidden_layers"))
    attention_changes: Table = {"full": {}, "sliding": {"sliding_window": window_size}}
    for field_name, layer_kind in FULL_OR_SLIDING.items():
        if field_name in rope_tables and rope_tables[field_name] is None:
            attention_changes[layer_kind]["position"] = "none"
        else:
            attention_changes[layer_kind]["position"] = rope(config, layer_kind=field_name)
    if "sliding" in layer_kinds and window_size is None:
        raise config.error("sliding_window", None, "a positive whole number, for layer_types has sliding layers")
    changes_by_kind = {layer_kind: {"attention": changes} for layer_kind, changes in attention_changes.items()}
    stack_fields = stack_of_variants(changes_by_kind, layer_kinds)
    attention_table = attention(config, **attention_biases(config))
    return _parallel_decoder(config, attention_table, glu(config), _layer_norm(config), stack_fields)


IGNORED_FIELDS = field_names("""
    model_max_length cache_implementation layer_switch order_of_interleaved_layers position_embedding_type rotary_pct
    use_embedding_sharing use_gated_activation use_parallel_block use_parallel_embedding norm_topk_prob
    shared_expert_combination_strategy
    """)


def _rms_eps(model_values: ConfigValues) -> float:
    """Returns an RMSNorm's epsilon, for a config field that only configs with an RMSNorm have."""
    if model_values.layers[0].norm.type != "rmsnorm":
        raise AbsentValue
    return model_values.layers[0].norm.eps


FAMILIES = {
    "aya_vision": Family(None, text_type="cohere2", tower_file="siglip"),
    "cohere2_vision": Family(None, text_type="cohere2", tower_file="siglip"),
    "cohere_compass": Family(None, text_type="cohere_compass_text", tower_file="qwen"),
    "cohere_compass_text": Family(_read_cohere_compass, ignored_fields=IGNORED_FIELDS | {"sliding_window_pattern"}),
    "cohere": Family(_read_cohere, ignored_fields=IGNORED_FIELDS),
    "cohere2": Family(_read_cohere2, {"sliding_window_pattern": 4, "use_qk_norm": None}, IGNORED_FIELDS),
    "cohere2_moe": Family(
        _read_cohere2_moe,
        {"first_k_dense_replace": 0, "use_qk_norm": None},
        IGNORED_FIELDS,
        field_writers={
            "rms_norm_eps": _rms_eps,
            "expert_selection_fn": lambda s: s.moe.router.scoring_func,
            "prefix_dense_intermediate_size": lambda s: s.dense_network.intermediate_size,
            "intermediate_size": lambda s: s.moe.expert.intermediate_size,
        },
    ),
}
