"""Hy 4: gated latent attention with sinks, an indexer shared by most layers, and sigmoid routing.

It has hyper-connections without mixing.

transformers: models/hy_v4.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family
from ...parts import (
    Table,
    clamped,
    combined_kinds,
    decoder,
    dense_or_moe,
    glu,
    listed_kinds,
    rmsnorm,
    uncounted_prediction,
)
from ...writes import UNPADDED
from .deepseek import ROUTING, SIGMOID, mla, routed
from .deepseek_v4 import HYPER_MODULES
from .dsa import DSA_MODULES


def _hy_v4(config: Config) -> Table:
    """Reads Hy 4. Without `indexer_types`, layers 0 and 1 and every fourth layer from layer 1 on have an indexer."""
    uncounted_prediction(config)
    config.must("hidden_act", "silu")
    norm, depth = rmsnorm(config.number("rms_norm_eps")), config.size("num_hidden_layers")
    indexer = {field: config.size(field) for field in ("index_n_heads", "index_head_dim", "index_topk")}
    choices = listed_kinds(
        config,
        "indexer_types",
        {"full": "full", "shared": "shared"},
        ["shared" if i and (i - 1) % 4 else "full" for i in range(depth)],
    )
    if choices[0] != "full":
        raise config.wrong(
            "indexer_types",
            config.get("indexer_types"),
            "full for the first layer: no earlier layer has a selection to share",
        )
    networks, experts = dense_or_moe(config, depth, 1), routed(config, **SIGMOID)
    experts["expert"] = clamped(experts["expert"])
    network, layer_kinds = (
        glu(config) if "dense" in networks else experts,
        {"dense": {}, "moe": {"feed_forward": experts}},
    )
    block = {
        "type": "hyper",
        "attention": mla(config, indexer=indexer, output_gate={"per": "element"}, sinks=True),
        "feed_forward": network,
        "norm": norm,
        "hc_mult": config.size("hc_mult"),
        "hc_sinkhorn_iters": None,
        "hc_magnitude": config.number("hc_magnitude"),
        "hc_eps": config.number("hc_eps"),
    }
    stack = combined_kinds(
        (choices, {"full": {}, "shared": {"attention": {"indexer": {"shared": True}}}}), (networks, layer_kinds)
    )
    return decoder(
        config, block, norm, stack={**stack, "streams": {"type": "hyper", "hc_mult": config.size("hc_mult")}}
    )


DEFAULTS: dict[str, Any] = {
    "vocab_size": 120832,
    "hidden_size": 2816,
    "intermediate_size": 6912,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 34,
    "num_attention_heads": 32,
    "hidden_act": "silu",
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64,
    "v_head_dim": 256,
    "mlp_layer_types": None,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 16,
    "indexer_types": None,
    "hc_mult": 4,
    "hc_magnitude": 2.0,
    "hc_eps": 1e-6,
}

FAMILIES = {
    "hy_v4": Family(
        _hy_v4,
        DEFAULTS,
        ROUTING | {"layer_types", "learnable_sink_init", "swiglu_limit", "num_nextn_predict_layers"},
        writes=UNPADDED,
        modules={**HYPER_MODULES, **DSA_MODULES},
        earlier={"gate_proj": "linear_gate"},
    )
}
