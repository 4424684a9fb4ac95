"""MiniMax-M3: MiniMax-M2's experts with a shared expert, some dense layers, and an indexer that selects blocks of
tokens.

transformers: models/minimax_m3_vl (the text model; `minimax_m3_vl` adds a vision encoder).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Config
from ...family import Family
from ...parts import (
    DENSE_OR_MOE,
    Table,
    attention,
    crossed,
    decoder,
    listed,
    moe,
    qk_norm,
    rmsnorm,
    uncounted_prediction,
    whole_rope,
)
from ...writes import Value
from ..deepseek.deepseek import SIGMOID
from ..glm.glm import HALVES_MODULES

if TYPE_CHECKING:
    from ....to_hf.facts import Facts

OLDER = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Indexer field → its name in the table `sparse_attention_config`, which takes precedence."""


FIXED = {
    "attention_output_gate": False,
    "n_shared_experts": 1,
    "qk_norm_type": "per_head",
    "use_qk_norm": True,
    "use_routing_bias": True,
}
"""Fields of the checkpoints whose only supported value is the class's behaviour."""


def _minimax_m3(c: Config) -> Table:
    uncounted_prediction(c)
    for name, value in FIXED.items():
        c.must(name, None, value)
    depth, norm = c.size("num_hidden_layers"), rmsnorm(c.number("rms_norm_eps"))
    given = c.table("sparse_attention_config") if c.has("sparse_attention_config") else {}
    older = Config(given, {}, c.model_type, c.head, f"{c.where}sparse_attention_config.")
    indexer = {field: older.size(name) if older.has(name) else c.size(field) for field, name in OLDER.items()}
    default = ["full"] * depth
    if older.has("sparse_attention_freq"):
        default = _either(older, "sparse_attention_freq", "full", "sparse", depth)
    ranges = listed(c, "layer_types", {"full_attention": "full", "minimax_m3_sparse": "sparse"}, default)
    networks = _either(c, "moe_layer_freq", "dense", "moe", depth) if c.has("moe_layer_freq") else ["moe"] * depth
    networks = listed(c, "mlp_layer_types", DENSE_OR_MOE, networks)
    mixer = attention(c, position={**whole_rope(c), "rotary_dim": c.size("rotary_dim")}, **qk_norm(norm))
    experts = moe(
        c.size("num_local_experts", "num_experts"),
        c.size("num_experts_per_tok"),
        _swiglu(c, "intermediate_size"),
        _swiglu(c, "shared_intermediate_size"),
        **SIGMOID,
    )
    block = {"attention": mixer, "feed_forward": experts, "norm": norm, "norm_placement": "pre"}
    seen: Table = {"full": {}, "sparse": {"attention": {"block_indexer": {**indexer, "norm": norm}}}}
    dense: Table = {"type": "mlp", **_swiglu(c, "dense_intermediate_size")}
    return decoder(
        c, block, norm, stack=crossed((ranges, seen), (networks, {"moe": {}, "dense": {"feed_forward": dense}}))
    )


def _swiglu(c: Config, width: str) -> Table:
    """Clamped SwiGLU, whatever `hidden_act` says."""
    return {"intermediate_size": c.size(width), "hidden_act": "silu", "gated": True}


def _either(c: Config, field: str, zero: str, one: str, depth: int) -> list[str]:
    """Converts a list of 0 and 1 to names."""
    given = c.sizes(field)
    if len(given) != depth:
        raise c.wrong(field, given, f"{depth} times 0 or 1")
    return [one if g else zero for g in given]


def _sights(s: Facts) -> list[str]:
    """The kinds of layers of MiniMax-M3: block-sparse or full attention."""
    return ["full_attention" if mixer.block_indexer is None else "minimax_m3_sparse" for mixer in s.mixers]


def _ratio(field: str) -> Value:
    return lambda s: getattr(s.named("block_indexer"), field)


OF_THE_INDEXER = ("index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks")


FAMILIES = {
    "minimax_m3_vl_text": Family(
        _minimax_m3,
        {
            "vocab_size": 200064,
            "hidden_size": 6144,
            "intermediate_size": 3072,
            "num_hidden_layers": 60,
            "num_attention_heads": 64,
            "num_key_value_heads": 4,
            "head_dim": 128,
            "max_position_embeddings": 524288,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "num_experts_per_tok": 4,
            "num_local_experts": 128,
            "dense_intermediate_size": 12288,
            "shared_intermediate_size": 3072,
            "rotary_dim": 64,
            "mlp_layer_types": None,
            "index_n_heads": 4,
            "index_head_dim": 128,
            "index_block_size": 128,
            "index_topk_blocks": 16,
            "index_local_blocks": 1,
            "layer_types": None,
            **dict.fromkeys(FIXED),
        },
        frozenset(
            {
                "hidden_act",
                "moe_layer_freq",
                "output_router_logits",
                "partial_rotary_factor",
                "routed_scaling_factor",
                "sparse_attention_config",
                "scoring_func",
                "swiglu_alpha",
                "swiglu_limit",
                "use_gemma_norm",
                *OLDER,
            }
        ),
        writes={
            "layer_types": _sights,
            "intermediate_size": lambda s: s.moe.expert.intermediate_size,
            "dense_intermediate_size": lambda s: s.dense.intermediate_size,
            **{field: _ratio(field) for field in OF_THE_INDEXER},
        },
        modules=HALVES_MODULES,
        earlier={
            "mlp.experts": "block_sparse_moe.experts",
            "mlp.shared_experts": "block_sparse_moe.shared_experts",
            "mlp.gate": "block_sparse_moe.gate",
            "indexer.q_proj": "index_q_proj",
            "indexer.k_proj": "index_k_proj",
        },
    ),
    "minimax_m3_vl": Family(
        None,
        text="minimax_m3_vl_text",
        ties="either",
        modules={
            "towers.multi_modal_merger": "multi_modal_projector",
            "towers.multi_modal_merger.map_1": "merge_linear_1",
            "towers.multi_modal_merger.map_2": "merge_linear_2",
        },
        tower_file="qwen",
    ),
}
