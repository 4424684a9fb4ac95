"""The text model of Step-3.5 and Step-3.7: gated attention with QK-norm, sliding windows, DeepSeek-V3's routing.

Layers with a window may have more heads than layers without one.

transformers: models/step3p7. Configs of earlier code list more layers than num_hidden_layers: the last are those of
    multi-token prediction. vLLM: step3p5_mtp.py, for these modules, each with a head of its own.
"""

from __future__ import annotations

from ...config import Config, is_json_integer
from ...family import EVERY_CLASS, Family, Quirks, field_names
from ...parts import (
    DENSE_OR_MOE,
    FULL_OR_SLIDING,
    Table,
    add_mtp_modules,
    attention,
    attention_biases,
    decoder_of_kinds,
    glu,
    layer_table,
    listed_kinds,
    moe,
    note_uncounted_mtp,
    offset_rmsnorm,
    qk_norm_fields,
)
from ..deepseek.deepseek import SIGMOID_ROUTING


def _read_step3p5(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), offset_rmsnorm(config.number("rms_norm_eps"))
    attention_table = attention(config, output_gate={"per": "head"}, **attention_biases(config), **qk_norm_fields(norm))
    attention_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, ["full"] * depth)
    window_size = config.optional_integer("sliding_window")
    if window_size is None and "sliding" in attention_kinds:
        raise config.error("sliding_window", None, "a number of tokens, for there are layers with a window")
    sliding_attention: Table = {"num_attention_heads": _sliding_attention_heads(config), "sliding_window": window_size}
    if attention_table.get("num_key_value_heads") is None:  # otherwise as many as the query heads of its own layer
        sliding_attention["num_key_value_heads"] = config.integer("num_key_value_heads")
    for field_name, field_value in (
        ("num_experts", config.integer("n_routed_experts")),
        ("n_shared_experts", 1),
        ("scoring_func", "sigmoid"),
    ):
        if config.has(field_name):  # written by converters; its class does not read it
            config.require(field_name, field_value)
    has_mlp_bias = config.flag("mlp_bias")
    experts = moe(
        config.integer("n_routed_experts"),
        config.integer("num_experts_per_tok"),
        glu(config, ffn_width=config.integer("moe_intermediate_size")),
        glu(config, has_mlp_bias, ffn_width=config.integer("share_expert_dim")),
        **SIGMOID_ROUTING,
    )
    ffn_kinds = listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, _layers_with_experts(config, depth))
    block = layer_table(attention_table, glu(config, has_mlp_bias), norm)
    layer_configs: Table = {"full": {}, "sliding": {"attention": sliding_attention}}
    ffn_changes: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    model_fields = decoder_of_kinds(config, block, norm, (attention_kinds, layer_configs), (ffn_kinds, ffn_changes))
    prediction_kind = _prediction_attention(config, depth)
    if prediction_kind not in attention_kinds:
        note_uncounted_mtp(config)
        return model_fields
    dense_network = {"feed_forward": {"type": "mlp", **glu(config, has_mlp_bias)}}
    prediction_layer = {**layer_configs[prediction_kind], **dense_network}
    stack_fields = model_fields["decoder"]
    return {
        **model_fields,
        **add_mtp_modules(config, stack_fields, "prediction", prediction_layer, norm, own_head=True),
    }


def _prediction_attention(config: Config, depth: int) -> str:
    """Returns the attention kind of the multi-token-prediction layers, whose networks are dense.

    `layer_types` lists them behind the model's layers. Empty if they differ, are not listed or have experts.
    """
    module_count = config.count("num_nextn_predict_layers") if config.has("num_nextn_predict_layers") else 0
    layer_types = config.get("layer_types")
    module_types = {*layer_types[depth:]} if isinstance(layer_types, list) else set()
    has_experts = "moe" in _layers_with_experts(config, depth + module_count)[depth:]
    if not module_count or len(module_types) != 1 or has_experts:
        return ""
    return FULL_OR_SLIDING.get(str(module_types.pop()), "")


def _layers_with_experts(config: Config, depth: int) -> list[str]:
    """Returns each layer's network kind: experts in the layers of `moe_layers_enum`, by default from layer 3 on."""
    listed_indices = config.get("moe_layers_enum")
    if listed_indices is None:
        return ["dense" if layer_index < 3 else "moe" for layer_index in range(depth)]
    index_texts = listed_indices
    if isinstance(listed_indices, str):
        index_texts = [index_text for index_text in listed_indices.split(",") if index_text.strip()]
    if not isinstance(index_texts, list) or not all(
        is_json_integer(index_text) or str(index_text).strip().isdecimal() for index_text in index_texts
    ):
        raise config.error("moe_layers_enum", listed_indices, "indices of layers, separated by commas")
    expert_layers = {int(index_text) for index_text in index_texts}
    return ["moe" if layer_index in expert_layers else "dense" for layer_index in range(depth)]


def _sliding_attention_heads(config: Config) -> int:
    """Returns the number of query heads in layers with a sliding window."""
    head_count = config.optional_integer("num_sliding_attention_heads")
    if head_count is not None:
        return head_count
    default_heads = config.integer("num_attention_heads")
    if not config.has("attention_other_setting"):
        return default_heads
    sliding_config = config.section("attention_other_setting", {"num_attention_heads": default_heads})
    head_count = sliding_config.integer("num_attention_heads")
    for field_name, field_value in (
        ("num_attention_groups", config.integer("num_key_value_heads")),
        ("head_dim", config.get("head_dim")),
    ):
        if sliding_config.has(field_name) and field_value is not None:
            sliding_config.require(field_name, field_value)
    sliding_config.finish(frozenset({"attention_type", "true_head_dim"}), config)
    return head_count


IGNORED_FIELDS = field_names("""
    att_impl_type first_k_dense_replace moe_router_activation need_fp32_gate norm_expert_weight partial_rotary_factors
    per_layer_config scaling_factor sink use_head_wise_attn_gate use_mfa use_moe use_moe_router_bias use_qk_norm
    use_rope_layers yarn_only_types zero_centered
    """)


FAMILIES = {
    "step3p7": Family(
        None,
        {"tie_word_embeddings": False},  # what its class takes, whose configuration has no such field
        text_type="step3p5",
        tower_file="step",
        modules={
            "towers.vision_downsampler": "vision_model",
            "towers.vision_downsampler.map_1": "downsampler1",
            "towers.vision_downsampler.map_2": "downsampler2",
            "towers.multi_modal_projector.map_1": "multi_modal_projector",
        },
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
    ),
    "step3p5": Family(
        _read_step3p5,
        {"moe_layers_enum": None},
        IGNORED_FIELDS,
        unread_aliases=frozenset({"num_local_experts"}),  # the class's own n_routed_experts replaces it
        modules={"self_attn.gate_proj": "g_proj"},
        quirks=Quirks(value_reading_classes=EVERY_CLASS),
    ),
}
