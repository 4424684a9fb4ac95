"""The text models of GLM-4.1V and GLM-OCR (GLM-4-0414's layers), and of GLM-4.5V (with experts).

transformers: models/glm4v, models/glm_ocr, models/glm4v_moe.
"""

from __future__ import annotations

from ...config import Config
from ...family import Family
from ...parts import (
    QKV_BIASES,
    Table,
    attention,
    attention_biases,
    biases,
    decoder,
    dense_or_moe_kinds,
    fused_glu,
    layer_table,
    note_uncounted_mtp,
    rmsnorm,
    rope,
)
from ..deepseek.deepseek import ROUTING_FIELDS, SIGMOID_ROUTING, deepseek_decoder, routed_experts
from .glm import FUSED_GATE_MODULES, GLM4_MODULES


def _head_dim(config: Config) -> int:
    """Returns the size of a head: hidden_size / heads, rounded down as in the classes."""
    hidden_size, head_count = config.integer("hidden_size"), config.integer("num_attention_heads")
    if hidden_size < head_count:
        raise config.error("num_attention_heads", head_count, f"at most {hidden_size}, which is hidden_size")
    return hidden_size // head_count


def _dense_decoder(config: Config, token_mixer: Table) -> Table:
    norm = rmsnorm(config.number("rms_norm_eps"))
    return decoder(config, layer_table(token_mixer, fused_glu(config), norm, "sandwich"), norm)


def _read_glm4v_text(config: Config) -> Table:
    config.require("attention_bias", None, True)
    return _dense_decoder(config, attention(config, head_dim=_head_dim(config), **biases(True, *QKV_BIASES)))


def _read_glm_ocr_text(config: Config) -> Table:
    note_uncounted_mtp(config)
    return _dense_decoder(config, attention(config, head_dim=config.optional_integer("head_dim") or _head_dim(config)))


def _read_glm4v_moe_text(config: Config) -> Table:
    config.require("use_qk_norm", None, False)
    head_dim = config.optional_integer("head_dim") or _head_dim(config)
    attention_table = attention(
        config, position=rope(config, 0.5), head_dim=head_dim, **attention_biases(config, QKV_BIASES)
    )
    layer_kinds = dense_or_moe_kinds(config, config.integer("num_hidden_layers"), config.count("first_k_dense_replace"))
    return deepseek_decoder(config, attention_table, routed_experts(config, **SIGMOID_ROUTING), layer_kinds)


FAMILIES = {
    "glm4v": Family(None, text_type="glm4v_text", tying_source="either", tower_file="glm"),
    "glm4v_text": Family(
        _read_glm4v_text,
        {"tie_word_embeddings": False, "head_dim": None, "attention_bias": None},
        modules={**FUSED_GATE_MODULES, **GLM4_MODULES},
    ),
    "glm_ocr": Family(None, text_type="glm_ocr_text", tying_source="either", tower_file="glm"),
    "glm_ocr_text": Family(
        _read_glm_ocr_text,
        {"tie_word_embeddings": False, "head_dim": None},
        modules={**FUSED_GATE_MODULES, **GLM4_MODULES},
    ),
    "glm4v_moe": Family(None, text_type="glm4v_moe_text", tying_source="either", tower_file="glm"),
    "glm4v_moe_text": Family(
        _read_glm4v_moe_text,
        {"head_dim": None, "moe_layer_freq": 1, "use_qk_norm": None},
        ROUTING_FIELDS,
        aliases={"n_routed_experts": "num_local_experts"},
    ),
}
