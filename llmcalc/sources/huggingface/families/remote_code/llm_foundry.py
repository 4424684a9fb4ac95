"""MPT in MosaicML's llm-foundry: also grouped queries, RoPE, gated FFNs, FFNs of any width (replit-code v1.5).

transformers' class of MPT has none of these. Sources: its `llmfoundry/models/mpt` and `llmfoundry/models/layers`.
"""

from __future__ import annotations

from typing import Any

from .....components.base import LARGEST_SIZE
from ...code_addresses import GITHUB
from ...config import Config
from ...family import Family, field_names
from ...parts import ACTIVATIONS, QKV_BIASES, Table, biases, decoder, layer_table, layernorm, learned_positions, rmsnorm

NORM_BUILDERS = {
    "layernorm": layernorm,
    "low_precision_layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "low_precision_rmsnorm": rmsnorm,
    "triton_rmsnorm": rmsnorm,
}


def _read_mpt(config: Config) -> Table:
    config.require("block_overrides", None)
    has_bias = not config.flag("no_bias")
    norm = _norm(config, has_bias)
    attention_config = config.section("attn_config", ATTENTION_DEFAULTS)
    attention_table = _attention(config, attention_config, norm, has_bias)
    stack_fields: Table = {}
    if "position" not in attention_table and config.flag("learned_pos_emb"):
        stack_fields = {"position": learned_positions(config)}
    attention_config.finish(ATTENTION_IGNORED_FIELDS, config)
    return decoder(config, layer_table(attention_table, _ffn(config, has_bias), norm), norm, stack=stack_fields)


def _norm(config: Config, has_bias: bool) -> Table:
    """Returns the norm. has_bias: whether a LayerNorm has a bias (the config's `no_bias` is false)."""
    make_norm = config.choice(NORM_BUILDERS, "norm_type")
    norm: Table = make_norm(config.number("layer_norm_epsilon"))
    return norm if has_bias or make_norm is rmsnorm else {**norm, "bias": False}


def _attention(config: Config, attention_config: Config, norm: Table, has_bias: bool) -> Table:
    """Returns the attention in the table `attn_config`. has_bias: whether the model's other linear layers have one."""
    head_count = config.integer("num_attention_heads")
    head_dim = config.optional_integer("head_dim") or config.quotient(
        "num_attention_heads", config.integer("hidden_size"), head_count
    )
    attention_kind = attention_config.choice(
        {"multihead_attention": head_count, "multiquery_attention": 1, "grouped_query_attention": None}, "attn_type"
    )
    kv_head_count = attention_config.integer("kv_n_heads") if attention_kind is None else attention_kind
    if head_count % kv_head_count:
        raise attention_config.error("kv_n_heads", kv_head_count, f"a divisor of {head_count}")
    attention_config.require("kv_n_heads", None, kv_head_count)
    attention_config.require_fields(kv_dim=None, reuse_kv_layer_idx=None, reuse_kv_x_layer_idx=None)
    attention_table: Table = {"num_attention_heads": head_count, "head_dim": head_dim}
    if kv_head_count != head_count:
        attention_table["num_key_value_heads"] = kv_head_count
    if attention_config.flag("rope"):
        attention_table["position"] = {"type": "rope", "rope_theta": attention_config.number("rope_theta")}
    elif attention_config.flag("alibi"):
        attention_table["position"] = {"type": "alibi"}
    if attention_config.flag("qk_ln") or attention_config.flag("qk_gn"):
        norm_scope = "projection" if attention_config.flag("qk_ln") else "head"
        attention_table["qk_norm"] = {"norm": norm, "scope": norm_scope, "order": "before_rope"}
    window_size = attention_config.get("sliding_window_size")
    if window_size != -1:
        attention_table["sliding_window"] = (
            attention_config.integer("sliding_window_size") + 1
        )  # the token itself, and those before
    qkv_bias = has_bias if config.get("attention_bias") is None else config.flag("attention_bias")
    return {**attention_table, **biases(qkv_bias, *QKV_BIASES), **biases(has_bias, "o_bias")}


def _ffn(config: Config, has_bias: bool) -> Table:
    """Returns the FFN of the table `ffn_config`, whose width replaces expansion_ratio."""
    ffn_config = config.section("ffn_config", {"ffn_type": "mptmlp", "ffn_hidden_size": None, "ffn_act_fn": None})
    is_gated = ffn_config.choice({"mptmlp": False, "mptglu": True}, "ffn_type")
    activation: str = "gelu"
    if ffn_config.has("ffn_act_fn"):
        activation = ffn_config.section("ffn_act_fn", {"name": "gelu"}).choice(ACTIVATIONS, "name")
    hidden_size, expansion_ratio = config.integer("hidden_size"), config.number("expansion_ratio")
    ffn_width = ffn_config.optional_integer("ffn_hidden_size") or int(hidden_size * expansion_ratio)
    if not ffn_config.has("ffn_hidden_size") and (
        ffn_width != hidden_size * expansion_ratio or not 1 <= ffn_width <= LARGEST_SIZE
    ):
        raise config.error("expansion_ratio", expansion_ratio, f"a multiple of 1 / d_model ({hidden_size})")
    ffn_config.finish(frozenset({"fc_type"}), config)
    gate_fields = {"gated": True, **biases(has_bias, "gate_bias")} if is_gated else {}
    return {
        "intermediate_size": ffn_width,
        "hidden_act": activation,
        **gate_fields,
        **biases(has_bias, "up_bias", "down_bias"),
    }


ATTENTION_DEFAULTS: dict[str, Any] = {
    "attn_type": "multihead_attention",
    "qk_ln": False,
    "qk_gn": False,
    "sliding_window_size": -1,
    "kv_n_heads": None,
    "alibi": False,
    "rope": False,
    "rope_theta": 10000,
    "kv_dim": None,
    "reuse_kv_layer_idx": None,
    "reuse_kv_x_layer_idx": None,
}
ATTENTION_IGNORED_FIELDS = field_names("""
    alibi_bias_max attn_impl attn_logit_softcapping attn_pdrop attn_temperature_tuning attn_uses_sequence_id clip_qkv
    fused_qkv nope prefix_lm rope_dail_config rope_hf_config rope_impl rope_theta seq_parallel_world_size softmax_scale
    """)

FAMILIES = {
    "llm_foundry_mpt": Family(
        _read_mpt,
        {
            "d_model": 2048,
            "n_heads": 16,
            "n_layers": 24,
            "head_dim": None,
            "expansion_ratio": 4,
            "max_seq_len": 2048,
            "vocab_size": 50368,
            "learned_pos_emb": True,
            "no_bias": False,
            "attention_bias": None,
            "norm_type": "low_precision_layernorm",
            "norm_eps": 1e-5,
            "block_overrides": None,
            "tie_word_embeddings": True,
        },
        field_names("""
            emb_pdrop embedding_fraction expansion_ratio fc_type final_logit_softcapping init_config init_device
            learned_pos_emb logit_scale resid_pdrop tokenizer_name use_pad_tok_in_ffn verbose
            """),
        aliases={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
            "layer_norm_epsilon": "norm_eps",
        },
        dropout_fields={},
        source=f"{GITHUB}mosaicml/llm-foundry/tree/main/llmfoundry/models/mpt",
    )
}
