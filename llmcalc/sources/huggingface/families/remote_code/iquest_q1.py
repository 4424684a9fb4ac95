"""IQuest-Q1: routed experts, norms before and after attention, and keys that are parameters as attention sinks.

In all layers but the first the residual sum starts from the normalized input, and no norm follows the experts. Factors
of sublayers, logits and scores change no count. The draft of its predictions is a checkpoint of its own.

Sources: SGLang's file in `Family.source`, its configs/iquest_q1.py, and IQuestLab/vllm-iquest-q1.
"""

from __future__ import annotations

from ...code_addresses import SGLANG
from ...config import Config
from ...family import Family, field_names
from ...parts import FULL_OR_SLIDING, Table, decoder, glu, moe, rmsnorm, stack_of_layers

PATTERN_FIELDS = ("first_layers_types", "hybrid_layers_types_block", "last_layers_types")
"""Fields with the kinds of the first layers, of a block that repeats, and of the last layers."""

DEFAULT_IF_NULL = (*PATTERN_FIELDS, "mlp_only_layers")
"""Config fields in which null means the class's default."""

NORMALIZED_RESIDUALS = ["self_attn_pre_norm", "mlp_post_norm"]
"""The norms that layers after the first do not have, because their residual sums start from the normalized input."""


def _read_iquest_q1(config: Config) -> Table:
    for field_name, expected_value in (("attention_bias", False), ("use_over_encoding", False), ("hidden_act", "silu")):
        config.require(field_name, expected_value)
    config = config.with_fields(
        **{field_name: config.defaults[field_name] for field_name in DEFAULT_IF_NULL if not config.has(field_name)}
    )
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    rotary_dim = config.integer("head_dim" if config.get("rotary_dim") is None else "rotary_dim")
    attention: Table = {
        **config.integer_fields("num_attention_heads", "num_key_value_heads", "head_dim"),
        "qk_norm": {"norm": norm},
        "sink_keys": config.flag("enable_sink_attention"),
        "position": {"type": "rope", "rotary_dim": rotary_dim},
    }
    dense_ffn = {"type": "mlp", **glu(config, ffn_width=config.integer("dense_intermediate_size"))}
    experts = moe(config.integer("num_experts"), config.integer("num_experts_per_tok"), glu(config))
    list_fields = ("no_rope_layers", "mlp_only_layers")
    unrotated_layers, dense_layers = (_layer_indices(config, list_field) for list_field in list_fields)
    config.fields_read.add("sliding_window")  # also where no layer has one
    layers: list[tuple[str, Table]] = []
    for layer_index, attention_kind in enumerate(_attention_kinds(config, depth)):
        token_mixer: Table = {"sliding_window": config.integer("sliding_window")} if attention_kind == "sliding" else {}
        layer_changes: Table = {"feed_forward": dense_ffn} if layer_index in dense_layers else {}
        name = attention_kind + ("_dense" if layer_index in dense_layers else "")
        if layer_index in unrotated_layers:
            token_mixer, name = {**token_mixer, "position": "none"}, f"{name}_unrotated"
        if layer_index:
            layer_changes |= {"input_norm": norm, "without_norms": NORMALIZED_RESIDUALS}
        layers.append(
            (
                name if layer_index else f"{name}_first",
                {**layer_changes, **({"attention": token_mixer} if token_mixer else {})},
            )
        )
    block = {"attention": attention, "feed_forward": experts, "norm": norm, "norm_placement": "sandwich"}
    if config.count("num_mtp_layers"):
        config.notes.append("num_mtp_layers: the draft of its predictions is not counted")
    return decoder(config, block, norm, stack=stack_of_layers(layers))


def _attention_kinds(config: Config, depth: int) -> list[str]:
    """Returns `full` or `sliding` for each layer: the first layers, repeated groups of layers, and the last layers."""
    first_kinds, block_kinds, last_kinds = (_listed_types(config, field_name) for field_name in PATTERN_FIELDS)
    block_count = config.count("num_hybrid_layers_block")
    if not (config.flag("use_hybrid_layers") and config.flag("use_sliding_window")):
        return ["full"] * depth
    stated_depth = len(first_kinds) + len(block_kinds) * block_count + len(last_kinds)
    if stated_depth != depth:
        raise config.error("num_hidden_layers", depth, f"the {stated_depth} layers that its lists describe")
    return [*first_kinds, *block_kinds * block_count, *last_kinds]


def _listed_types(config: Config, field_name: str) -> list[str]:
    layer_types = config.texts(field_name)
    if not {*layer_types} <= {*FULL_OR_SLIDING}:
        raise config.error(field_name, layer_types, " or ".join(FULL_OR_SLIDING))
    return [FULL_OR_SLIDING[layer_type] for layer_type in layer_types]


def _layer_indices(config: Config, field_name: str) -> set[int]:
    return set(config.integers(field_name)) if config.get(field_name) is not None else set()


FAMILIES = {
    "iquest_q1": Family(
        _read_iquest_q1,
        {
            "vocab_size": 160000,
            "hidden_size": 3072,
            "dense_intermediate_size": 12288,
            "intermediate_size": 1536,
            "num_hidden_layers": 88,
            "num_attention_heads": 48,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "rotary_dim": 32,
            "hidden_act": "silu",
            "max_position_embeddings": 524288,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "use_over_encoding": False,
            "sliding_window": 4096,
            "use_hybrid_layers": True,
            "use_sliding_window": True,
            "first_layers_types": ["full_attention"],
            "hybrid_layers_types_block": ["full_attention", *["sliding_attention"] * 3],
            "num_hybrid_layers_block": 21,
            "last_layers_types": ["full_attention"] * 3,
            "no_rope_layers": None,
            "mlp_only_layers": [0],
            "num_experts": 256,
            "num_experts_per_tok": 8,
            "enable_sink_attention": True,
            "num_mtp_layers": 0,
        },
        field_names("""
            attn_out_scale enable_lm_head_fp32 ffn_out_scale first_layer_attn_out_scale first_layer_ffn_out_scale
            hybrid_layer_pattern is_hybrid_swa layer_types logit_scale moe_router_dtype softmax_scale swa_rope_theta
            """),
        source=f"{SGLANG}iquest_q1.py",
    )
}
