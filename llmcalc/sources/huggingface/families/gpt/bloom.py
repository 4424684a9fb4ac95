"""Decoders with ALiBi or with one norm per layer: bloom, falcon (7B, 40B and ALiBi shapes), mpt.

transformers: models/bloom, models/falcon, models/mpt. All three tie their head by default.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .....components.mixers.attention import Attention
from .....ops import AttentionCore, KVCache, Op
from ...config import Config
from ...dropout import HIDDEN_DROPOUT
from ...family import Deviation, Family, field_names
from ...parts import QKVO_BIASES, Table, biases, decoder, layer_table, layernorm, mlp, rope
from .gpt import full_width_heads, non_gated_ffn

if TYPE_CHECKING:
    from .....model import ModelSpec
    from ....to_hf.config_values import ConfigValues


def _read_bloom(config: Config) -> Table:
    norm = layernorm(config.number("layer_norm_epsilon"))
    token_mixer = full_width_heads(
        config, position={"type": "alibi"}, fused_qkv=True, names_scores=True, **biases(True, *QKVO_BIASES)
    )
    block = layer_table(token_mixer, mlp(4 * config.integer("hidden_size"), "gelu_tanh"), norm)
    return decoder(config, block, norm, stack={"embedding_norm": norm})


def _read_falcon(config: Config) -> Table:
    norm, head_count = layernorm(config.number("layer_norm_epsilon")), config.integer("num_attention_heads")
    is_new_architecture = _nullable_flag(config, "new_decoder_architecture")
    is_parallel = _nullable_flag(config, "parallel_attn")
    norm_count = config.optional_integer("num_ln_in_parallel_attn")
    if is_new_architecture and not is_parallel:
        raise config.error("parallel_attn", is_parallel, "true with new_decoder_architecture")
    if is_parallel and not is_new_architecture and norm_count == 2:
        raise config.error("num_ln_in_parallel_attn", norm_count, "1 or nothing without new_decoder_architecture")
    kv_head_count = config.optional_integer("num_kv_heads") or head_count
    if not is_new_architecture:
        kv_head_count = 1 if _nullable_flag(config, "multi_query") else head_count
    has_alibi = _nullable_flag(config, "alibi")
    position_encoding = {"type": "alibi"} if has_alibi else rope(config)
    softmax_fields: Table = {} if has_alibi else {"float32_softmax": False}
    softmax_fields |= {"repeat_kv": False} if kv_head_count == 1 < head_count else {}
    has_biases = _nullable_flag(config, "bias")
    token_mixer = full_width_heads(
        config,
        num_key_value_heads=kv_head_count,
        position=position_encoding,
        **softmax_fields,
        **biases(has_biases, *QKVO_BIASES),
    )
    if kv_head_count == head_count:
        del token_mixer["num_key_value_heads"]
    feed_forward = non_gated_ffn(config, "ffn_hidden_size", "activation", _nullable_flag(config, "bias"))
    block: Table = layer_table(token_mixer, feed_forward, norm)
    if is_parallel:
        block["parallel"] = "separate" if is_new_architecture and norm_count in (None, 2) else "shared"
    return decoder(config, block, norm)


def _nullable_flag(config: Config, field_name: str) -> bool:
    """Returns a boolean field; null means false."""
    return config.get(field_name) is not None and config.flag(field_name)


def _read_mpt(config: Config) -> Table:
    """Reads MPT as published, with ALiBi; config options that the class ignores are not read."""
    norm = layernorm(config.number("layer_norm_epsilon"), bias=False)
    config.require_fields(expansion_ratio=4, no_bias=True)
    attention_config = config.section("attn_config", ATTENTION_DEFAULTS)
    attention_config.require_fields(attn_type="multihead_attention", alibi=True, qk_ln=False)
    attention_config.finish(ATTENTION_IGNORED_FIELDS, config)
    ffn_config = config.section("ffn_config", {"ffn_type": "mptmlp"})
    ffn_config.require("ffn_type", "mptmlp")
    ffn_config.finish(frozenset({"fc_type"}), config)
    token_mixer = full_width_heads(config, position={"type": "alibi"}, fused_qkv=True)
    block = layer_table(token_mixer, mlp(4 * config.integer("hidden_size"), "gelu", bias=False), norm)
    return decoder(config, block, norm)


ATTENTION_DEFAULTS: dict[str, Any] = {"attn_type": "multihead_attention", "alibi": True, "qk_ln": False}
ATTENTION_IGNORED_FIELDS = frozenset(
    {"alibi_bias_max", "attn_impl", "attn_uses_sequence_id", "clip_qkv", "prefix_lm", "softmax_scale"}
)


def _is_newer_decoder(model_values: ConfigValues) -> bool:
    """Whether a Falcon has the newer decoder architecture: two parallel norms, or grouped queries."""
    return model_values.layers[0].parallel == "separate" or model_values.usual_value("num_key_value_heads") not in (
        1,
        model_values.first_value("num_attention_heads"),
    )


def _with_cache_of_every_head(op: Op) -> Op:
    if isinstance(op, AttentionCore):
        return KVCache(op.heads * (op.qk_dim + op.v_dim), "full_attention")
    return replace(op, width=0) if isinstance(op, KVCache) else op


def _has_grouped_queries(spec: ModelSpec) -> bool:
    """Whether a Falcon has the newer decoder architecture and more than a single key/value head."""
    token_mixer, is_parallel = spec.main.block.attention, spec.main.block.parallel
    return (
        isinstance(token_mixer, Attention)
        and token_mixer.num_key_value_heads is not None
        and (token_mixer.num_key_value_heads > 1 or is_parallel == "separate")
    )


KEEPS_EVERY_HEAD = Deviation(
    "Falcon's cache",
    "grouped keys and values are cached once for each query head",
    "cache_bytes",
    class_op=_with_cache_of_every_head,
    applies_to=_has_grouped_queries,
)


FAMILIES = {
    "bloom": Family(
        _read_bloom,
        ignored_fields=field_names(
            "bias_dropout_fusion masked_softmax_fusion n_inner offset_alibi seq_length skip_bias_add skip_bias_add_qkv"
        ),
        aliases={"hidden_size": "n_embed", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"},
        has_older_aliases=True,
        dropout_fields=HIDDEN_DROPOUT,
    ),
    "falcon": Family(
        _read_falcon,
        ignored_fields=frozenset({"apply_residual_connection_post_layernorm", "ff_factor"}),
        aliases={"hidden_size": "n_embed"},
        field_writers={
            "alibi": lambda s: s.full_attention.position is not None and s.full_attention.position.type == "alibi",
            "new_decoder_architecture": _is_newer_decoder,
            "num_ln_in_parallel_attn": lambda s: {"separate": 2, "shared": 1}.get(s.layers[0].parallel or ""),
            "parallel_attn": lambda s: s.layers[0].parallel is not None,
            "bias": lambda s: s.network.up_bias,
        },
        has_older_aliases=True,
        deviations=(KEEPS_EVERY_HEAD,),
        dropout_fields={"feed_forward": "hidden_dropout"},  # of the sum of both branches
    ),
    "mpt": Family(
        _read_mpt,
        {"ffn_config": None},
        frozenset({"fc_type", "init_config", "tokenizer_name", "verbose"}),
        aliases={
            "hidden_size": "d_model",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "max_position_embeddings": "max_seq_len",
        },
        dropout_fields={},
    ),
}
