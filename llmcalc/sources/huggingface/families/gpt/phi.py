"""Llama's attention with other norms and FFNs: phi, phi3, persimmon, stablelm, starcoder2, jais2.

transformers: models/phi, models/phi3, models/persimmon, models/stablelm, models/starcoder2, models/jais2.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...field_writers import NO_PADDING_WRITER, PARTIAL_ROTARY_WRITER
from ...parts import (
    QKV_BIASES,
    QKVO_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    fused_glu,
    glu,
    layer_table,
    layernorm,
    qk_norm_fields,
    rope,
)
from ..llama.llama import llama_decoder
from .gpt import full_width_heads, non_gated_ffn


def _read_phi3(config: Config) -> Table:
    position_encoding = {**rope(config), "concatenated": True}
    return llama_decoder(config, attention(config, position=position_encoding, fused_qkv=True), ffn=fused_glu(config))


def _read_phi(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_eps"))
    qk_norms = qk_norm_fields(norm) if config.flag("qk_layernorm") else {}
    attention_table = attention(config, position=rope(config, 0.5), **biases(True, *QKVO_BIASES), **qk_norms)
    block = layer_table(
        attention_table, non_gated_ffn(config, "intermediate_size", "hidden_act"), norm, parallel="shared"
    )
    return decoder(config, block, norm, head={"bias": True})


def _read_persimmon(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_eps"))
    qk_norms = qk_norm_fields(norm) if config.flag("qk_layernorm") else {}
    token_mixer = full_width_heads(config, position=rope(config, 0.5), **biases(True, *QKVO_BIASES), **qk_norms)
    return decoder(
        config, layer_table(token_mixer, non_gated_ffn(config, "intermediate_size", "hidden_act"), norm), norm
    )


def _read_stablelm(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_eps"))
    qk_norms = qk_norm_fields({**norm, "bias": False}, "per_head") if config.flag("qk_layernorm") else {}
    has_biases = config.flag("use_qkv_bias")
    attention_table = attention(
        config, head_dim=None, position=rope(config, 0.25), **biases(has_biases, *QKV_BIASES), **qk_norms
    )
    parallel_field = {"parallel": "shared"} if config.flag("use_parallel_residual") else {}
    block = {
        "attention": attention_table,
        "feed_forward": glu(config),
        "norm": norm,
        "norm_placement": "pre",
        **parallel_field,
    }
    return decoder(config, block, norm)


def _read_starcoder2(config: Config) -> Table:
    norm, has_bias = layernorm(config.number("norm_epsilon")), config.flag("use_bias")
    sliding_window = config.optional_integer("sliding_window")
    attention_table = attention(config, sliding_window=sliding_window, **biases(has_bias, *QKVO_BIASES))
    block = layer_table(attention_table, non_gated_ffn(config, "intermediate_size", "hidden_act", has_bias), norm)
    return decoder(config, block, norm)


def _read_jais2(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_eps"))
    attention_table = attention(config, **attention_biases(config))
    ffn = non_gated_ffn(config, "intermediate_size", "hidden_act", config.flag("mlp_bias"))
    return decoder(config, layer_table(attention_table, ffn, norm), norm)


FAMILIES = {
    "phi3": Family(
        _read_phi3,
        {"head_dim": None},
        frozenset({"attention_bias", "full_attn_mod", "interpolate_factor", "lm_head_bias", "mlp_bias"}),
        field_writers={**NO_PADDING_WRITER, **PARTIAL_ROTARY_WRITER},
        dropout_fields={
            "attention": "attention_dropout",
            "attention_output": "resid_pdrop",
            "feed_forward": "resid_pdrop",
        },
    ),
    "phi": Family(
        _read_phi,
        {"head_dim": None},
        field_writers=PARTIAL_ROTARY_WRITER,
        dropout_fields={
            "embedding": "embd_pdrop",
            "attention": "attention_dropout",
            "attention_output": "resid_pdrop",
            "feed_forward": "resid_pdrop",
        },
    ),
    "persimmon": Family(
        _read_persimmon,
        ignored_fields=frozenset({"num_key_value_heads"}),
        field_writers=PARTIAL_ROTARY_WRITER,
        dropout_fields={"attention": "attention_dropout", "feed_forward": "hidden_dropout"},
    ),
    "stablelm": Family(
        _read_stablelm,
        {"head_dim": None},
        frozenset({"head_dim", "rope_pct", "rotary_scaling_factor"}),
        field_writers=PARTIAL_ROTARY_WRITER,
        modules={"q_norm": "q_layernorm", "k_norm": "k_layernorm"},
        dropout_fields={"attention": "attention_dropout", "feed_forward": "hidden_dropout"},
    ),
    "starcoder2": Family(
        _read_starcoder2,
        {"head_dim": None},
        frozenset({"mlp_type", "norm_type"}),
        field_writers={"use_bias": lambda s: s.network.up_bias},
        modules={"up_proj": "c_fc", "down_proj": "c_proj"},
        dropout_fields={
            "embedding": "embedding_dropout",
            "attention": "attention_dropout",
            "attention_output": "residual_dropout",
            "feed_forward": "residual_dropout",
        },
    ),
    "jais2": Family(_read_jais2, ignored_fields=frozenset({"rope_interleaved"})),
}
