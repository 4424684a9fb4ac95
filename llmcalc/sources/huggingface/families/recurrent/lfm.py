"""Liquid AI's LFM2 and LFM3: gated short convolutions, and some layers of attention with QK-norm.

transformers: models/lfm2, models/lfm2_moe, models/lfm3.
"""

from __future__ import annotations

from math import floor
from typing import Any

from .....components.mixers.attention import Attention
from .....components.networks.router import LinearRouter
from ...config import Config
from ...family import Family, field_names, module_names
from ...field_writers import NO_PADDING_WRITER
from ...parts import (
    Table,
    attention,
    attention_biases,
    decoder,
    layer_table,
    listed_kinds,
    moe,
    qk_norm_fields,
    rmsnorm,
    rope,
    stack_of_kinds,
)

CONV_OR_FULL = {"conv": "conv", "full_attention": "full"}


def _mixer_tables(config: Config, norm: Table, **attention_fields: Any) -> dict[str, Table]:
    position_encoding = {"rope_theta": 1_000_000.0, **rope(config)}
    full_attention = attention(config, position=position_encoding, **qk_norm_fields(norm), **attention_fields)
    conv = {"type": "short_conv", "conv_L_cache": config.integer("conv_L_cache"), "conv_bias": config.flag("conv_bias")}
    return {"conv": conv, "full": {"type": "attention", **full_attention}}


def _swiglu(ffn_width: int) -> Table:
    return {"type": "mlp", "intermediate_size": ffn_width, "hidden_act": "silu", "gated": True}


def _tying_field(config: Config) -> Table:
    return {"tie_word_embeddings": config.flag("tie_embedding", "tie_word_embeddings")}


def _read_lfm2(config: Config) -> Table:
    """Reads LFM2: `block_ff_dim` replaces intermediate_size.

    If the config enables it, the FFN width is two thirds of that, times an optional factor, rounded up to a multiple.
    """
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("norm_eps"))
    ffn_width = config.integer("block_ff_dim", "intermediate_size")
    if config.flag("block_auto_adjust_ff_dim"):
        ffn_width = floor(2 * ffn_width / 3)
        if config.get("block_ffn_dim_multiplier") is not None:
            width_multiple = config.integer("block_multiple_of")
            width_factor = config.number("block_ffn_dim_multiplier")
            if width_factor * ffn_width < 1:
                raise config.error("block_ffn_dim_multiplier", width_factor, f"at least 1 / {ffn_width}")
            ffn_width = -(-floor(ffn_width * width_factor) // width_multiple) * width_multiple
    full_layers = set(range(depth)) if config.get("full_attn_idxs") is None else set(config.integers("full_attn_idxs"))
    default_layer_kinds = ["full" if layer_index in full_layers else "conv" for layer_index in range(depth)]
    layer_kinds = listed_kinds(config, "layer_types", CONV_OR_FULL, default_layer_kinds)
    block: Table = {"feed_forward": _swiglu(ffn_width), "norm": norm, "norm_placement": "pre"}
    stack_fields = stack_of_kinds(
        {
            layer_kind: {**block, "attention": token_mixer}
            for layer_kind, token_mixer in _mixer_tables(config, norm).items()
        },
        layer_kinds,
    )
    return decoder(config, stack_fields["block"], norm, stack=stack_fields, **_tying_field(config))


def _read_lfm2_moe(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("norm_eps"))
    use_expert_bias = config.flag("use_expert_bias")
    router: Table = {"scoring_func": "sigmoid", **({"score_correction": "buffer"} if use_expert_bias else {})}
    num_experts = config.integer("num_experts")
    num_experts_per_tok = config.integer("num_experts_per_tok")
    experts = moe(num_experts, num_experts_per_tok, _swiglu(config.integer("moe_intermediate_size")), router=router)
    ffns_by_kind = {"dense": _swiglu(config.integer("intermediate_size")), "moe": experts}
    layer_configs = {
        f"{mixer_kind}_{ffn_kind}": layer_table(mixer_fields, ffns_by_kind[ffn_kind], norm)
        for mixer_kind, mixer_fields in _mixer_tables(config, norm).items()
        for ffn_kind in ffns_by_kind
    }
    config.texts("layer_types")  # the class has no default for layer_types
    dense_layer_count = config.count("num_dense_layers")
    mixer_kinds = listed_kinds(config, "layer_types", CONV_OR_FULL, [""] * depth)
    layer_kinds = [
        f"{kind}_{'dense' if layer_index < dense_layer_count else 'moe'}"
        for layer_index, kind in enumerate(mixer_kinds)
    ]
    stack_fields = stack_of_kinds(layer_configs, layer_kinds)
    return decoder(config, stack_fields["block"], norm, stack=stack_fields, **_tying_field(config))


def _read_lfm3(config: Config) -> Table:
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("norm_eps"))
    output_gate = {"output_gate": {"per": "head"}} if config.flag("use_attention_gate") else {}
    mixers = _mixer_tables(config, norm, **output_gate, **attention_biases(config))
    sliding_window = config.optional_integer("sliding_window")
    mixers["sliding"] = {
        **mixers["full"],
        **({} if sliding_window is None else {"sliding_window": config.integer("sliding_window")}),
    }
    default_layer_kinds = [
        "full" if layer_index % 4 == 2 else "sliding" if layer_index % 4 == 0 and layer_index > 0 else "conv"
        for layer_index in range(depth)
    ]
    kind_by_type = {**CONV_OR_FULL, "sliding_attention": "sliding"}
    layer_kinds = listed_kinds(config, "layer_types", kind_by_type, default_layer_kinds)
    block: Table = {"feed_forward": _swiglu(config.integer("intermediate_size")), "norm": norm}
    block["norm_placement"] = "sandwich" if config.flag("use_sandwich_norm") else "pre"
    layer_configs = {layer_kind: {**block, "attention": token_mixer} for layer_kind, token_mixer in mixers.items()}
    stack_fields = stack_of_kinds(layer_configs, layer_kinds)
    return decoder(config, stack_fields["block"], norm, stack=stack_fields)


UNUSED_FIELDS = field_names("""
    block_dim block_ff_dim block_mlp_init_scale block_multiple_of block_ffn_dim_multiplier block_norm_eps
    block_out_init_scale block_use_swiglu block_use_xavier_init conv_dim conv_dim_out conv_use_xavier_init
    full_attn_idxs norm_topk_prob num_heads partial_rotary_factor routed_scaling_factor theta tie_embedding use_pos_enc
    """)
"""Fields of the checkpoints' configs that the classes ignore always or in some cases."""


FAMILIES = {
    "lfm2": Family(
        _read_lfm2,
        ignored_fields=UNUSED_FIELDS,
        field_writers={"block_auto_adjust_ff_dim": lambda s: False},
        dropout_fields={},
    ),
    "lfm2_moe": Family(
        _read_lfm2_moe,
        ignored_fields=UNUSED_FIELDS,
        field_writers={"use_expert_bias": lambda s: s.find_part(LinearRouter).score_correction == "buffer"},
        modules=module_names("lfm2"),
        dropout_fields={},
    ),
    "lfm2_vl": Family(None, text_type="lfm2", aliases={"tie_word_embeddings": "tie_embedding"}, tower_file="siglip"),
    "lfm3": Family(
        _read_lfm3,
        ignored_fields=UNUSED_FIELDS,
        field_writers={
            "use_sandwich_norm": lambda s: s.layers[0].norm_placement == "sandwich",
            "use_attention_gate": lambda s: any(
                isinstance(mixer, Attention) and mixer.output_gate is not None for mixer in s.mixers
            ),
            **NO_PADDING_WRITER,
        },
        modules={**module_names("lfm2"), "self_attn.o_proj": "o_proj | out_proj", "self_attn.gate_proj": "g_proj"},
        earlier_names={"self_attn.g_proj": "self_attn.gate_proj"},
    ),
    "lfm3_vl": Family(None, text_type="lfm3", tower_file="pixtral"),
}
