"""MiMo-V2.5 and -Pro: sliding layers with separate sizes, and experts in listed layers.

MiMo-V2-Flash has a class in transformers, which reads fewer of the fields (`experts.mimo`). Naive-N0.5-Flash, trained
from MiMo-V2.5, has an indexer in every layer without a window.

Source: the file in `Family.source`.
"""

from __future__ import annotations

from .....components.rope import Rope
from ...code_addresses import GITHUB, VLLM
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV_BIASES,
    Table,
    add_mtp_modules,
    attention,
    attention_biases,
    decoder,
    gated_experts,
    glu,
    layer_table,
    rmsnorm,
    rope,
    stack_of_combined_kinds,
)
from ..deepseek.deepseek import ROUTING_FIELDS, SIGMOID_ROUTING
from ..experts.mimo import SLIDING_SIZE_FIELDS


def _read_mimo_v2(config: Config) -> Table:
    """Reads MiMo-V2.5: only sliding layers have sinks; 1 in `hybrid_layer_pattern` marks a sliding layer."""
    config.require("add_full_attention_sink_bias", None, False)
    return _sliding_and_full_decoder(config, {}, has_prediction=True)


def _read_naive(config: Config) -> Table:
    """Reads Naive-N0.5-Flash, whose class requires the sizes of sliding layers."""
    config.require_fields(tie_word_embeddings=False, enable_dsa=True, index_n_kv_heads=1)
    for field_name in SLIDING_SIZE_FIELDS:
        config.integer(f"swa_{field_name}")
    rotary_size = Rope(**rope(config)).rotary_size(config.integer("head_dim"))
    indexer_table: Table = {
        "type": "token_indexer",
        **config.integer_fields("index_n_heads", "index_head_dim"),
        "index_topk": config.integer("index_top_k"),
        "rotary_dim": rotary_size,
    }
    sink_fields = {"sinks": True} if config.flag("add_full_attention_sink_bias") else {}
    return _sliding_and_full_decoder(config, {"block_indexer": indexer_table, **sink_fields})


def _sliding_and_full_decoder(config: Config, full_fields: Table, has_prediction: bool = False) -> Table:
    """Returns a decoder with sliding and full layers. full_fields: additional attention fields of full layers.

    has_prediction: whether the config may state modules of multi-token prediction, each with a dense sliding layer
        (SGLang, models/mimo_v2_nextn.py); false by default.
    """
    config.require("n_shared_experts", None, 0)
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    qkv_biases = attention_biases(config, QKV_BIASES)
    head_fields = {
        field_name: config.integer(field_name, "head_dim") if field_name == "v_head_dim" else config.integer(field_name)
        for field_name in SLIDING_SIZE_FIELDS
    }
    sliding_sizes = {
        name: config.integer(f"swa_{name}") if config.has(f"swa_{name}") else size for name, size in head_fields.items()
    }
    window_size = config.integer("sliding_window_size", "sliding_window")
    sink_fields = {"sinks": True} if config.flag("add_swa_attention_sink_bias") else {}
    attention_table = attention(config, **qkv_biases, **head_fields)
    layer_marks = _layer_marks(config, "hybrid_layer_pattern", depth)
    attention_kinds = ["sliding" if layer_mark else "full" for layer_mark in layer_marks]
    ffn_kinds = ["moe" if layer_mark else "dense" for layer_mark in _layer_marks(config, "moe_layer_freq", depth)]
    experts = gated_experts(config, count_fields=("n_routed_experts",), **SIGMOID_ROUTING)
    block = layer_table(attention_table, glu(config), norm)
    attention_changes: Table = {
        "full": {"attention": {**attention_table, **full_fields}} if full_fields else {},
        "sliding": {"attention": {**attention_table, **sliding_sizes, **sink_fields, "sliding_window": window_size}},
    }
    ffn_changes: Table = {"dense": {}, "moe": {"feed_forward": experts}}
    stack_fields = stack_of_combined_kinds((attention_kinds, attention_changes), (ffn_kinds, ffn_changes))
    mtp_fields = (
        add_mtp_modules(config, stack_fields, "sliding-dense", attention_changes["sliding"]) if has_prediction else {}
    )
    return decoder(config, block, norm, stack=stack_fields, **mtp_fields)


def _layer_marks(config: Config, field_name: str, depth: int) -> list[int]:
    """Returns a list with 0 or 1 for each layer. Raises `InputError` for another length or another number."""
    layer_marks = config.integers(field_name)
    if len(layer_marks) != depth or not {*layer_marks} <= {0, 1}:
        raise config.error(field_name, layer_marks, f"{depth} times 0 or 1, one for each layer")
    return layer_marks


IGNORED_FIELDS = field_names("""
    attention_chunk_size attention_projection_layout attention_value_scale hybrid_block_size sliding_window
    sliding_window_size swa_rope_theta
    """)
"""Fields of both models that change no count."""

FAMILIES = {
    "mimo_v2": Family(
        _read_mimo_v2,
        {
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "add_swa_attention_sink_bias": False,
            "add_full_attention_sink_bias": None,
            "n_shared_experts": None,
        },
        ROUTING_FIELDS | IGNORED_FIELDS,
        uncounted_fields={
            **dict.fromkeys(("vision_config", "audio_config"), "its encoder is not counted"),
            "num_mtp_modules": "the {} multi-token-prediction modules are not counted",
        },
        aliases={"rms_norm_eps": "layernorm_epsilon", "num_nextn_predict_layers": "num_mtp_layers"},
        source=f"{VLLM}mimo_v2.py",
    ),
    "naive_n05_flash": Family(
        _read_naive,
        {
            "rms_norm_eps": 1e-5,
            "n_shared_experts": None,
            "tie_word_embeddings": False,
            "enable_dsa": True,
            "index_n_kv_heads": 1,
        },
        ROUTING_FIELDS | IGNORED_FIELDS | {"indexer_activation_dtype"},
        aliases={"rms_norm_eps": "layernorm_epsilon"},
        source=f"{GITHUB}NaiveAI-Labs/Naive-N0.5-Flash/blob/main/modeling_naive_n05_flash.py",
    ),
}
