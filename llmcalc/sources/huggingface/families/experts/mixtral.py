"""Mixtures of experts with Llama's layers: mixtral, qwen2_moe, qwen3_moe, phimoe.

transformers: models/mixtral, models/qwen2_moe, models/qwen3_moe, models/phimoe. Every expert is a SwiGLU FFN without
    biases.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    FULL_OR_SLIDING,
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    decoder_of_kinds,
    glu,
    layer_table,
    layernorm,
    listed_kinds,
    moe,
    qk_norm_fields,
    rmsnorm,
)


def _read_mixtral(config: Config) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    num_local_experts = config.integer("num_local_experts", "num_experts")
    experts = moe(num_local_experts, config.integer("num_experts_per_tok"), glu(config))
    attention_table = attention(config, sliding_window=config.optional_integer("sliding_window"))
    return decoder(config, layer_table(attention_table, experts, norm), norm)


def _read_phimoe(config: Config) -> Table:
    if config.integer("num_experts_per_tok") != 2:
        raise config.field_error("num_experts_per_tok", "2: its router (SparseMixer) always chooses two experts")
    norm = layernorm(config.number("rms_norm_eps"))
    attention_table = attention(
        config, sliding_window=config.optional_integer("sliding_window"), **attention_biases(config)
    )
    block = layer_table(attention_table, moe(config.integer("num_local_experts"), 2, glu(config)), norm)
    return decoder(config, block, norm, head=biases(config.flag("lm_head_bias"), "bias"))


def _read_qwen2_moe(config: Config) -> Table:
    shared_width = config.integer("shared_expert_intermediate_size")
    depth = config.integer("num_hidden_layers")
    uses_window = config.flag("use_sliding_window")
    first_sliding_layer = config.count("max_window_layers")
    default_layer_kinds = [
        "sliding" if uses_window and layer_index < first_sliding_layer and layer_index % 2 == 0 else "full"
        for layer_index in range(depth)
    ]
    layer_kinds = listed_kinds(config, "layer_types", FULL_OR_SLIDING, default_layer_kinds)
    # The class writes a window of 0 into a config without `use_sliding_window`.
    window_size = config.optional_integer("sliding_window") if uses_window else None
    if window_size is not None:
        kinds_and_changes = (layer_kinds, {"full": {}, "sliding": {"attention": {"sliding_window": window_size}}})
    else:
        kinds_and_changes = (["full"] * depth, {"full": {}})
    attention_table = attention(config, **biases(config.flag("qkv_bias"), *QKV_BIASES))
    expert_fields = {"shared_expert": glu(config, ffn_width=shared_width), "shared_expert_gate": True}
    return qwen_moe_decoder(config, config.count("num_experts"), attention_table, expert_fields, kinds_and_changes)


def read_qwen3_moe(config: Config) -> Table:
    for field_name, field_value in (
        ("qkv_bias", False),
        ("shared_expert_intermediate_size", 0),
        ("use_qk_norm", True),
    ):  # in Qwen3-Coder's config; no class reads it
        config.require_if_present(field_name, field_value)
    window_size = config.optional_integer("sliding_window") if config.flag("use_sliding_window") else None
    qk_norms = qk_norm_fields(rmsnorm(config.number("rms_norm_eps")))
    attention_table = attention(config, sliding_window=window_size, **attention_biases(config), **qk_norms)
    return qwen_moe_decoder(config, config.count("num_experts", "num_local_experts"), attention_table, {})


def kinds_with_experts(config: Config, expert_count: int, depth: int) -> list[str]:
    """Returns `moe` or `dense` for each layer: every n-th layer has experts unless `mlp_only_layers` lists it."""
    interval = config.integer("decoder_sparse_step")
    dense_layers = set() if config.get("mlp_only_layers") is None else set(config.integers("mlp_only_layers"))
    return [
        "moe" if expert_count and layer_index not in dense_layers and (layer_index + 1) % interval == 0 else "dense"
        for layer_index in range(depth)
    ]


def qwen_moe_decoder(
    config: Config,
    expert_count: int,
    token_mixer: Table,
    moe_fields: Table,
    *kinds_and_changes: tuple[list[str], Table],
    float32_product: bool = False,
) -> Table:
    """Returns a model with experts in every `decoder_sparse_step`-th layer that is not in `mlp_only_layers`.

    moe_fields: fields of the experts beyond the routed ones. float32_product: as in `Norm`.
    """
    norm = rmsnorm(config.number("rms_norm_eps"), **biases(float32_product, "float32_product"))
    depth = config.integer("num_hidden_layers")
    layer_kinds = kinds_with_experts(config, expert_count, depth)
    if "moe" in layer_kinds:
        ffn_width = config.integer("moe_intermediate_size")
        num_experts_per_tok = config.integer("num_experts_per_tok")
        expert_ffn = moe(expert_count, num_experts_per_tok, glu(config, ffn_width=ffn_width), **moe_fields)
    else:
        expert_ffn = {}
    ffn = glu(config) if "dense" in layer_kinds else expert_ffn
    block = layer_table(token_mixer, ffn, norm)
    layer_changes: Table = {"dense": {}, "moe": {"feed_forward": expert_ffn} if "dense" in layer_kinds else {}}
    return decoder_of_kinds(config, block, norm, *kinds_and_changes, (layer_kinds, layer_changes))


IGNORED_FIELDS = frozenset({"norm_topk_prob", "original_max_position_embeddings", "input_jitter_noise"})
FIELDS_OF_ABSENT_LAYERS = {"intermediate_size", "moe_intermediate_size", "num_experts_per_tok"}
"""Fields that are not read if no layer is dense or no layer has experts."""

FAMILIES = {
    "mixtral": Family(_read_mixtral, earlier_names={"mlp": "block_sparse_moe"}),
    "qwen2_moe": Family(_read_qwen2_moe, {"head_dim": None}, IGNORED_FIELDS | FIELDS_OF_ABSENT_LAYERS),
    "qwen3_moe": Family(
        read_qwen3_moe, {"head_dim": None}, IGNORED_FIELDS | FIELDS_OF_ABSENT_LAYERS | {"max_window_layers"}
    ),
    "phimoe": Family(_read_phimoe, {"head_dim": None}, IGNORED_FIELDS, earlier_names={"mlp": "block_sparse_moe"}),
}
