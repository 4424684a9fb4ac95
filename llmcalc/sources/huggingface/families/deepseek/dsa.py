"""DeepSeek sparse attention: DeepSeek-V3's layers with an indexer that selects the attended tokens.

GLM-5 shares one selection between layers. A.X-K2 gates its norms and the output of its heads. transformers:
models/deepseek_v32, models/glm_moe_dsa, models/axk2.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, ModuleNames, field_names
from ...parts import (
    DENSE_OR_MOE,
    Table,
    decoder,
    decoder_of_kinds,
    dense_or_moe_kinds,
    glu,
    layer_table,
    listed_kinds,
    mtp_modules,
    rmsnorm,
    stack_of_combined_kinds,
)
from .deepseek import LATENT_WRITERS, ROUTING_FIELDS, SIGMOID_ROUTING, latent_attention, routed_experts


def _read_deepseek_v32(config: Config) -> Table:
    return _sparse_attention_model(config, ["full"] * config.integer("num_hidden_layers"))


def _read_glm_moe_dsa(config: Config) -> Table:
    if config.has("num_experts"):  # written by quantizers beside the field that the class reads
        config.require("num_experts", config.integer("n_routed_experts"))
    layer_indexers = indexer_kinds(config, config.integer("num_hidden_layers"))
    check_first_indexer(config, layer_indexers)
    return _sparse_attention_model(config, layer_indexers)


def check_first_indexer(config: Config, layer_indexers: list[str]) -> None:
    """Raises `InputError` if the first layer has no indexer. layer_indexers: `full` or `shared`, per layer."""
    if layer_indexers[0] != "full":
        raise config.field_error("indexer_types", "full for the first layer: no earlier layer has a selection to share")


def indexer_kinds(config: Config, depth: int) -> list[str]:
    """Returns `full` for each layer with an indexer, and `shared` for layers that reuse an earlier selection.

    The config has a list, a pattern, or an interval.
    """
    if config.has("index_topk_pattern") and not config.has("indexer_types"):
        indexer_pattern = config.get("index_topk_pattern")
        pattern_kinds = (
            [{"F": "full", "S": "shared"}.get(pattern_letter, pattern_letter) for pattern_letter in indexer_pattern]
            if isinstance(indexer_pattern, str | list)
            else []
        )
        if len(pattern_kinds) != depth or not {*pattern_kinds} <= {"full", "shared"}:
            raise config.error("index_topk_pattern", indexer_pattern, f"{depth} times F or S")
        return pattern_kinds
    default_layer_kinds = ["full"] * depth
    if not config.has("indexer_types"):
        indexer_period, indexer_offset = max(config.count("index_topk_freq"), 1), config.count("index_skip_topk_offset")
        default_layer_kinds = [
            "shared" if max(layer_index - indexer_offset + 1, 0) % indexer_period else "full"
            for layer_index in range(depth)
        ]
    return listed_kinds(config, "indexer_types", {"full": "full", "shared": "shared"}, default_layer_kinds)


def _sparse_attention_model(config: Config, layer_indexers: list[str]) -> Table:
    config.require_fields(moe_layer_freq=1, mlp_bias=False)
    norm = rmsnorm(config.number("rms_norm_eps"))
    indexer_table = config.integer_fields("index_n_heads", "index_head_dim", "index_topk")
    ffn_kinds = dense_or_moe_kinds(config, len(layer_indexers), config.count("first_k_dense_replace"))
    experts = routed_experts(config, **SIGMOID_ROUTING)
    ffn = glu(config) if "dense" in ffn_kinds else experts
    ffn_changes = {"dense": {}, "moe": {"feed_forward": experts}}
    block = layer_table(latent_attention(config, indexer=indexer_table), ffn, norm)
    shared_layer_fields = {"attention": {"indexer": {"shared": True}}}
    stack_fields = stack_of_combined_kinds(
        (layer_indexers, {"full": {}, "shared": shared_layer_fields}), (ffn_kinds, ffn_changes)
    )
    mtp_fields = mtp_modules(config)
    if mtp_fields and "shared" in layer_indexers:
        mtp_fields["mtp"]["layer"] = next(
            variant_name
            for variant_name in ("full-moe", "full-dense", "full")
            if variant_name in stack_fields["variants"]
        )
    return decoder(config, block, norm, stack=stack_fields, **mtp_fields)


def _read_axk2(config: Config) -> Table:
    """Reads A.X-K2, whose layers with experts have a gate after the norm before the FFN, but dense layers none."""
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    first_expert_layer, expert_period = (
        (config.count("first_k_dense_replace"), config.integer("moe_layer_freq"))
        if not config.has("mlp_layer_types")
        else (0, 1)
    )
    default_layer_kinds = [
        "moe" if layer_index >= first_expert_layer and layer_index % expert_period == 0 else "dense"
        for layer_index in range(depth)
    ]
    ffn_kinds = listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, default_layer_kinds)
    experts = routed_experts(config, **SIGMOID_ROUTING)
    indexer_table = config.integer_fields("index_n_heads", "index_head_dim", "index_topk")
    dense_layer_fields = (
        {"feed_forward": {"type": "mlp", **glu(config)}, "feed_forward_gate": False} if "dense" in ffn_kinds else {}
    )
    layer_configs: Table = {"dense": dense_layer_fields, "moe": {}}
    block = {
        "type": "gated_norm",
        "attention": latent_attention(config, indexer=indexer_table, query_gate=True),
        "feed_forward": experts,
        "norm": norm,
        "gated_norm_rank": config.integer("gated_norm_rank"),
    }
    return decoder_of_kinds(config, block, norm, (ffn_kinds, layer_configs))


DSA_MODULES: ModuleNames = {"indexer.k_proj": "wk", "indexer.q_proj": "wq_b"}

FAMILIES = {
    "deepseek_v32": Family(
        _read_deepseek_v32, {"moe_layer_freq": 1}, ROUTING_FIELDS, field_writers=LATENT_WRITERS, modules=DSA_MODULES
    ),
    "glm_moe_dsa": Family(
        _read_glm_moe_dsa,
        {"moe_layer_freq": 1, "index_topk_freq": 1, "index_skip_topk_offset": 2},
        ROUTING_FIELDS
        | field_names("""
            index_share_for_mtp_iteration index_skip_topk_offset index_topk_freq index_topk_pattern
            indexer_rope_interleave moe_router_dtype
            """),
        field_writers={
            **LATENT_WRITERS,
            "indexer_types": lambda s: ["shared" if mixer.indexer.shared else "full" for mixer in s.mixers],
        },
        modules=DSA_MODULES,
        earlier_names={"self_attn.indexer.weights_proj": "self_attn.indexers_proj"},
    ),
    "axk2": Family(
        _read_axk2,
        {"first_k_dense_replace": 1, "moe_layer_freq": 1},
        ROUTING_FIELDS | {"mlp_bias", "first_k_dense_replace"},
        field_writers=LATENT_WRITERS,
        modules={
            **DSA_MODULES,
            "self_attn_pre_norm": "input_layernorm - input_layernorm.mlp | input_layernorm",
            "self_attn_pre_norm_gate": "input_layernorm.mlp",
            "mlp_pre_norm": "post_attention_layernorm - post_attention_layernorm.mlp | post_attention_layernorm",
            "mlp_pre_norm_gate": "post_attention_layernorm.mlp",
            "mlp_pre_norm_gate.down_proj": "fc1",
            "mlp_pre_norm_gate.up_proj": "fc2",
            "self_attn_pre_norm_gate.down_proj": "fc1",
            "self_attn_pre_norm_gate.up_proj": "fc2",
        },
        earlier_names={
            "input_layernorm.mlp.fc1": "input_layernorm.W_down",
            "input_layernorm.mlp.fc2": "input_layernorm.W_up",
            "post_attention_layernorm.mlp.fc1": "post_attention_layernorm.W_down",
            "post_attention_layernorm.mlp.fc2": "post_attention_layernorm.W_up",
            "q_gate_proj": "q_b_proj",
        },
    ),
}
