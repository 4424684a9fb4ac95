"""Hy 4: gated latent attention with sinks, an indexer shared by most layers, and sigmoid routing.

It has hyper-connections without mixing.

transformers: models/hy_v4.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family, module_names
from ...field_writers import NO_PADDING_WRITER
from ...parts import (
    Table,
    clamped_swiglu,
    decoder,
    dense_or_moe_kinds,
    glu,
    listed_kinds,
    note_uncounted_mtp,
    rmsnorm,
    stack_of_combined_kinds,
)
from .deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, latent_attention, routed_experts
from .dsa import DSA_MODULES, check_first_indexer


def read_hy_v4(config: Config) -> Table:
    """Reads Hy 4. Without `indexer_types`, layers 0 and 1 and every fourth layer from layer 1 on have an indexer."""
    note_uncounted_mtp(config)
    config.require("hidden_act", "silu")
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.integer("num_hidden_layers")
    indexer_table = config.integer_fields("index_n_heads", "index_head_dim", "index_topk")
    default_layer_kinds = [
        "shared" if layer_index and (layer_index - 1) % 4 else "full" for layer_index in range(depth)
    ]
    layer_indexers = listed_kinds(config, "indexer_types", {"full": "full", "shared": "shared"}, default_layer_kinds)
    check_first_indexer(config, layer_indexers)
    ffn_kinds, experts = dense_or_moe_kinds(config, depth, 1), routed_experts(config, **SIGMOID_ROUTING)
    experts["expert"] = clamped_swiglu(experts["expert"])
    ffn = glu(config) if "dense" in ffn_kinds else experts
    ffn_changes = {"dense": {}, "moe": {"feed_forward": experts}}
    block = {
        "type": "hyper",
        "attention": latent_attention(config, indexer=indexer_table, output_gate={"per": "element"}, sinks=True),
        "feed_forward": ffn,
        "norm": norm,
        "hc_mult": config.integer("hc_mult"),
        "hc_sinkhorn_iters": None,
        "hc_magnitude": config.number("hc_magnitude"),
        "hc_eps": config.number("hc_eps"),
    }
    shared_layer_fields = {"attention": {"indexer": {"shared": True}}}
    stack_fields = stack_of_combined_kinds(
        (layer_indexers, {"full": {}, "shared": shared_layer_fields}), (ffn_kinds, ffn_changes)
    )
    streams = {"type": "hyper", "hc_mult": config.integer("hc_mult")}
    return decoder(config, block, norm, stack={**stack_fields, "streams": streams})


FAMILIES = {
    "hy_v4": Family(
        read_hy_v4,
        ignored_fields=ROUTING_FIELDS | {"num_nextn_predict_layers"},
        field_writers=NO_PADDING_WRITER,
        modules={**module_names("hyperclovax"), **DSA_MODULES},
        earlier_names={"gate_proj": "linear_gate"},
    )
}
