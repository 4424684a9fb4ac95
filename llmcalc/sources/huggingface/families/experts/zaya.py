"""Zyphra's ZAYA1: compressed convolutional attention, scaled residuals, and an MLP router.

The router lets tokens skip all experts.

transformers: models/zaya.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...field_writers import PARTIAL_ROTARY_WRITER
from ...parts import Table, biases, decoder, glu, layer_table, listed_kinds, moe, rmsnorm, rope, stack_of_combined_kinds


def _read_zaya(config: Config) -> Table:
    """Reads ZAYA1, whose routers add the features of an earlier layer's router, except in the first layer.

    In configs of the older code some layers are attention and others experts; a config with only those fields is an
    error.
    """
    if config.has("zaya_mlp_expansion") and not config.has("router_hidden_size"):
        ffn_expansion = config.get("zaya_mlp_expansion")
        raise config.error(
            "zaya_mlp_expansion",
            ffn_expansion,
            "router_hidden_size instead, with num_hidden_layers counting layers of both attention and experts",
        )
    config.require("num_experts_per_tok", 1)
    depth = config.integer("num_hidden_layers")
    norm = rmsnorm(config.number("rms_norm_eps"))
    window_size = config.optional_integer("sliding_window")
    kind_by_type = {"hybrid": "full", "hybrid_sliding": "sliding"}
    attention_kinds = listed_kinds(config, "layer_types", kind_by_type, ["full"] * depth)
    if "sliding" in attention_kinds and window_size is None:
        raise config.error("sliding_window", None, "a positive whole number: layer_types has hybrid_sliding")
    attention_table: Table = {
        "type": "cca",
        **config.integer_fields("num_attention_heads", "num_key_value_heads", "head_dim", "cca_time0", "cca_time1"),
        "attention_bias": config.flag("attention_bias"),
        "position": rope(config, 0.5, layer_kind="hybrid"),
    }
    sliding_attention: Table = {
        "sliding_window": window_size,
        "position": rope(config, 0.5, layer_kind="hybrid_sliding"),
    }
    router: Table = {
        "type": "mlp",
        "router_hidden_size": config.integer("router_hidden_size"),
        "norm": norm,
        "skip": True,
        "score_correction": "buffer",
    }
    num_experts = config.integer("num_experts")
    experts = moe(num_experts, 1, glu(config, ffn_width=config.integer("moe_intermediate_size")), router=router)
    block = layer_table(attention_table, experts, norm, residual_scale=True)
    router_kinds = ["first" if layer_index == 0 else "further" for layer_index in range(depth)]
    router_fields: Table = {"first": {}, "further": {"feed_forward": {"router": {"adds_below": True}}}}
    sliding_layer_fields = {"attention": sliding_attention}
    stack_fields = {
        "embedding_norm": {"type": "affine"},
        **stack_of_combined_kinds(
            (attention_kinds, {"full": {}, "sliding": sliding_layer_fields}), (router_kinds, router_fields)
        ),
    }
    return decoder(config, block, norm, head=biases(config.flag("lm_head_bias"), "bias"), stack=stack_fields)


def _scale_and_bias_paths(module_name: str) -> str:
    """Returns the module names of the scale and bias vectors of a residual stream or of a sublayer's output."""
    return f"{module_name}_scale + {module_name}_bias"


FAMILIES = {
    "zaya": Family(
        _read_zaya,
        ignored_fields=frozenset({"zaya_mlp_expansion"}),
        field_writers={
            "layer_types": lambda s: s.layer_kinds(full_attention="hybrid", sliding_attention="hybrid_sliding"),
            **PARTIAL_ROTARY_WRITER,
        },
        modules={
            "embed_norm": "input_hidden_states_scale + input_hidden_states_bias",
            "router": "gate",
            "router.fc1": "router_mlp.fc1",
            "router.fc2": "router_mlp.fc2",
            "router.norm": "router_mlp.norm",
            "router.out_proj": "router_mlp.out_proj",
            "router.below_scale": "router_states_scale",
            "mlp_out_scale": _scale_and_bias_paths("post_mlp_residual_scale.hidden_states"),
            "mlp_residual_scale": _scale_and_bias_paths("post_mlp_residual_scale.residual"),
            "self_attn_out_scale": _scale_and_bias_paths("post_attention_residual_scale.hidden_states"),
            "self_attn_residual_scale": _scale_and_bias_paths("post_attention_residual_scale.residual"),
            "q_proj": "qkv_proj.q_proj",
            "k_proj": "qkv_proj.k_proj",
            "v_proj": "qkv_proj.v_proj_current",
            "v_proj_before": "qkv_proj.v_proj_delayed",
            "conv_channels": "qkv_proj.conv_qk_depthwise",
            "conv_heads": "qkv_proj.conv_qk_grouped",
            "key_scale": "qk_norm.temp",
        },
    )
}
