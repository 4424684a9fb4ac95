"""The text models of Muse Glimmer and Muse Spark: gated attention, QK-norm, weightless norms on embeddings.

A full-attention layer has no positions. Glimmer has Gemma 2's norms. Spark gates its residual sums and has experts of
a latent width.

transformers: models/muse_glimmer, models/muse_spark.
"""

from __future__ import annotations

from .....components.base import LARGEST_SIZE
from .....components.networks.moe import MoE
from ...absent_value import require_present
from ...config import Config, is_number
from ...family import Family
from ...parts import (
    DENSE_OR_MOE,
    FULL_OR_SLIDING,
    Table,
    attention,
    attention_biases,
    decoder,
    gated_experts,
    glu,
    layer_table,
    listed_kinds,
    offset_rmsnorm,
    qk_norm_fields,
    rmsnorm,
    rope,
    stack_of_layers,
)


def _read_muse_glimmer_text(config: Config) -> Table:
    eps = config.number("rms_norm_eps")
    feed_forward = glu(config, activation_field="hidden_activation")
    block = layer_table(_gated_attention(config), feed_forward, offset_rmsnorm(eps), "sandwich")
    stack_fields = {**stack_of_layers(_attention_kinds(config)), "embedding_norm": rmsnorm(eps, weight=False)}
    return decoder(config, block, offset_rmsnorm(eps), stack=stack_fields)


def _read_muse_spark_text(config: Config) -> Table:
    """Reads Muse Spark, where layers have experts unless listed as dense."""
    depth = config.integer("num_hidden_layers")
    eps = config.number("rms_norm_eps")
    post_norm_eps = config.number("post_norm_eps")
    ffn_kinds = listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, ["moe"] * depth)
    norm, output_norm = offset_rmsnorm(eps), offset_rmsnorm(post_norm_eps)
    experts: Table = {}
    if "moe" in ffn_kinds:
        latent_fields = {"moe_latent_size": config.integer("moe_hidden_size"), "norm": norm, "expert_norm": output_norm}
        router = {"scoring_func": "sigmoid", "score_correction": "buffer"}
        experts = gated_experts(config, count_fields=("num_local_experts",), latent=latent_fields, router=router)
    dense_ffn: Table = {"type": "mlp", **glu(config)} if "dense" in ffn_kinds else {}
    config.fields_read.add("intermediate_size")
    block = {
        "type": "residual_gate",
        "attention": {**_gated_attention(config), "head_norm": rmsnorm(eps, weight=False)},
        "feed_forward": experts or dense_ffn,
        "norm": norm,
        "attention_output_norm": rmsnorm(post_norm_eps, weight=False),
        "feed_forward_output_norm": output_norm,
    }
    layers = [
        (
            f"{layer_kind}-{ffn_kind}",
            {**layer, **({"feed_forward": dense_ffn} if ffn_kind == "dense" and experts else {})},
        )
        for (layer_kind, layer), ffn_kind in zip(_attention_kinds(config), ffn_kinds, strict=True)
    ]
    stack_fields = {**stack_of_layers(layers), "embedding_norm": rmsnorm(eps, weight=False)}
    return decoder(config, block, rmsnorm(eps), stack=stack_fields)


def _gated_attention(config: Config) -> Table:
    """Returns gated attention with norms without weights on queries and keys."""
    norm = rmsnorm(config.number("rms_norm_eps"), weight=False)
    return attention(config, output_gate={"per": "element"}, **attention_biases(config), **qk_norm_fields(norm))


def _attention_kinds(config: Config) -> list[tuple[str, Table]]:
    """Returns each layer's kind, and its attention if it differs from the other layers' attention.

    Counted from the last layer down, every fourth has full attention and no positions.
    """
    depth = config.integer("num_hidden_layers")
    full_flags = [(depth - 1 - layer_index) % 4 == 0 for layer_index in range(depth)]
    default_layer_kinds = ["full" if is_full else "sliding" for is_full in full_flags]
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    return [
        (layer_kind, {"attention": {**position_change, **_window_field(config, layer_kind)}})
        for layer_kind, position_change in zip(layer_kinds, _position_changes(config, full_flags), strict=True)
    ]


def _position_changes(config: Config, full_flags: list[bool]) -> list[Table]:
    """Returns each layer's position encoding if different from the stack's. A `layer_rope_theta` of 0 means none."""
    rope_bases = config.get("layer_rope_theta")
    if rope_bases is None:
        return [{"position": "none"} if is_full else {} for is_full in full_flags]
    if (
        not isinstance(rope_bases, list)
        or len(rope_bases) != len(full_flags)
        or any(not is_number(rope_base) or not 0 <= rope_base <= LARGEST_SIZE for rope_base in rope_bases)
    ):
        raise config.error(
            "layer_rope_theta", rope_bases, f"{len(full_flags)} bases of RoPE, 0 for a layer without positions"
        )
    rotary_position = rope(config)
    return [
        {"position": {**rotary_position, "rope_theta": float(rope_base)} if rope_base else "none"}
        for rope_base in rope_bases
    ]


def _window_field(config: Config, layer_kind: str) -> Table:
    return {"sliding_window": config.integer("sliding_window")} if layer_kind == "sliding" else {}


FAMILIES = {
    "muse_glimmer": Family(
        None,
        {"tie_word_embeddings": False},  # what its class takes, whose configuration has no such field
        text_type="muse_glimmer_text",
        tower_file="muse",
        modules={"towers.vision_projection.map_1": "vision_projection"},
    ),
    "muse_glimmer_text": Family(_read_muse_glimmer_text),
    "muse_spark": Family(
        None,
        text_type="muse_spark_text",
        tying_source="never",
        tower_file="muse",
        uncounted_encoders={"audio_config": "muse_spark_audio"},
    ),
    "muse_spark_text": Family(
        _read_muse_spark_text,
        field_writers={
            "post_norm_eps": lambda s: s.first_stack.block.attention_output_norm.eps,
            "mlp_layer_types": lambda s: [
                "sparse" if isinstance(layer.feed_forward, MoE) else "dense" for layer in s.layers
            ],
            "moe_hidden_size": lambda s: require_present(s.moe.latent).moe_latent_size,
        },
    ),
}
