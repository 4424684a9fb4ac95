"""MiniMax-M3: MiniMax-M2's experts with a shared expert, and an indexer that selects blocks of tokens.

Some layers are dense.

transformers: models/minimax_m3_vl (the text model; `minimax_m3_vl` adds a vision encoder).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...config import Config
from ...family import Family
from ...field_writers import FieldWriter
from ...parts import (
    DENSE_OR_MOE,
    Table,
    add_mtp_modules,
    attention,
    clamped_gpt_oss_ffn,
    decoder,
    full_rope,
    layer_table,
    listed_kinds,
    moe,
    note_uncounted_mtp,
    offset_rmsnorm,
    qk_norm_fields,
    stack_of_combined_kinds,
)
from ..deepseek.deepseek import SIGMOID_ROUTING
from ..glm.glm import FUSED_GATE_MODULES

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

OLDER_INDEXER_NAMES = {
    "index_n_heads": "sparse_num_index_heads",
    "index_head_dim": "sparse_index_dim",
    "index_block_size": "sparse_block_size",
    "index_topk_blocks": "sparse_topk_blocks",
    "index_local_blocks": "sparse_local_block",
}
"""Indexer field → its name in the table `sparse_attention_config`, which takes precedence."""


FIXED_FIELDS = {
    "attention_output_gate": False,
    "n_shared_experts": 1,
    "qk_norm_type": "per_head",
    "use_qk_norm": True,
    "use_routing_bias": True,
}
"""Config fields of the checkpoints → the only supported value, which is the class's behaviour."""


def _read_minimax_m3(config: Config) -> Table:
    for field_name, field_value in FIXED_FIELDS.items():
        config.require(field_name, None, field_value)
    config.require_if_present("moe_intermediate_size", config.integer("intermediate_size"))
    depth, norm = config.integer("num_hidden_layers"), offset_rmsnorm(config.number("rms_norm_eps"))
    older_config = config.section("sparse_attention_config")
    indexer_table = {
        field: older_config.integer(name) if older_config.has(name) else config.integer(field)
        for field, name in OLDER_INDEXER_NAMES.items()
    }
    default_layer_kinds = ["full"] * depth
    if older_config.has("sparse_attention_freq"):
        default_layer_kinds = _kinds_of_flags(older_config, "sparse_attention_freq", "full", "sparse", depth)
    kind_by_type = {"full_attention": "full", "minimax_m3_sparse": "sparse"}
    attention_kinds = listed_kinds(config, "layer_types", kind_by_type, default_layer_kinds)
    if config.has("moe_layer_freq"):
        ffn_kinds = _kinds_of_flags(config, "moe_layer_freq", "dense", "moe", depth)
    else:
        ffn_kinds = ["moe"] * depth
    ffn_kinds = listed_kinds(config, "mlp_layer_types", DENSE_OR_MOE, ffn_kinds)
    position_encoding = {**full_rope(config), "rotary_dim": config.integer("rotary_dim")}
    attention_table = attention(config, position=position_encoding, **qk_norm_fields(norm))
    experts = moe(
        config.integer("num_local_experts", "num_experts"),
        config.integer("num_experts_per_tok"),
        _swiglu(config, "intermediate_size"),
        _swiglu(config, "shared_intermediate_size"),
        **SIGMOID_ROUTING,
    )
    block = layer_table(attention_table, experts, norm)
    attention_changes: Table = {"full": {}, "sparse": {"attention": {"block_indexer": {**indexer_table, "norm": norm}}}}
    dense_ffn: Table = {"type": "mlp", **_swiglu(config, "dense_intermediate_size")}
    dense_layer_fields = {"feed_forward": dense_ffn}
    stack_fields = stack_of_combined_kinds(
        (attention_kinds, attention_changes), (ffn_kinds, {"moe": {}, "dense": dense_layer_fields})
    )
    return decoder(
        config, block, norm, stack=stack_fields, **_mtp_fields(config, stack_fields, attention_changes["sparse"], norm)
    )


def _mtp_fields(config: Config, stack_fields: Table, sparse_layer: Table, norm: Table) -> Table:
    """Returns the field `mtp`: modules with sparse attention and experts, whatever the decoder's last layer has.

    Sources: vLLM, models/minimax_m3/nvidia/mtp.py; the released index, whose `total_size` has one module. Published
    configs state 1 in `num_nextn_predict_layers` and 7 in `num_mtp_modules`.
    """
    if not config.has("num_nextn_predict_layers"):
        note_uncounted_mtp(config)
        return {}
    mtp_module_count = config.count("num_nextn_predict_layers")
    if config.has("num_mtp_modules") and config.count("num_mtp_modules") != mtp_module_count:
        config.notes.append(f"num_mtp_modules: ignored beside num_nextn_predict_layers, which is {mtp_module_count}")
    return add_mtp_modules(config, stack_fields, "sparse-moe", sparse_layer, norm)


def _swiglu(config: Config, width_field: str) -> Table:
    """Returns a clamped SwiGLU network, whatever `hidden_act` says."""
    return clamped_gpt_oss_ffn({"intermediate_size": config.integer(width_field), "gated": True})


def _kinds_of_flags(config: Config, field_name: str, name_if_zero: str, name_if_one: str, depth: int) -> list[str]:
    """Returns each layer's kind, by its 0 or 1 in a config list."""
    layer_flags = config.integers(field_name)
    if len(layer_flags) != depth:
        raise config.error(field_name, layer_flags, f"{depth} times 0 or 1")
    return [name_if_one if layer_flag else name_if_zero for layer_flag in layer_flags]


def _attention_kinds(model_values: ConfigValues) -> list[str]:
    """Returns the kinds of layers of MiniMax-M3: block-sparse or full attention."""
    return [
        "full_attention" if token_mixer.block_indexer is None else "minimax_m3_sparse"
        for token_mixer in model_values.mixers
    ]


def _indexer_field(field_name: str) -> FieldWriter:
    return lambda model_values: getattr(model_values.first_value("block_indexer"), field_name)


INDEXER_FIELDS = ("index_n_heads", "index_head_dim", "index_block_size", "index_topk_blocks", "index_local_blocks")


FAMILIES = {
    "minimax_m3_vl_text": Family(
        _read_minimax_m3,
        {
            "attention_output_gate": None,
            "n_shared_experts": None,
            "qk_norm_type": None,
            "use_qk_norm": None,
            "use_routing_bias": None,
        },
        frozenset(
            {
                "first_k_dense_replace",
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
                *OLDER_INDEXER_NAMES,
            }
        ),
        field_writers={
            "layer_types": _attention_kinds,
            "intermediate_size": lambda s: s.moe.expert.intermediate_size,
            "dense_intermediate_size": lambda s: s.dense_network.intermediate_size,
            **{field_name: _indexer_field(field_name) for field_name in INDEXER_FIELDS},
        },
        modules=FUSED_GATE_MODULES,
        earlier_names={
            "mlp.experts": "block_sparse_moe.experts",
            "mlp.shared_experts": "block_sparse_moe.shared_experts",
            "mlp.gate": "block_sparse_moe.gate",
            "indexer.q_proj": "index_q_proj",
            "indexer.k_proj": "index_k_proj",
        },
    ),
    "minimax_m3_vl": Family(None, text_type="minimax_m3_vl_text", tying_source="either", tower_file="qwen"),
}
