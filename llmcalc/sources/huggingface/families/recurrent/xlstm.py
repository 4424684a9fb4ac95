"""xLSTM (xLSTM-7B): mLSTM layers, each with a gated FFN.

transformers: models/xlstm, which never ties the head to the embedding.
"""

from __future__ import annotations

from math import floor

from ...absent_value import require_present
from ...config import Config
from ...family import Family, field_names
from ...field_writers import FieldWriter
from ...parts import Table, biases, decoder, layer_table, rmsnorm


def _read_xlstm(config: Config) -> Table:
    hidden_size, head_count, has_bias = (
        config.integer("hidden_size"),
        config.integer("num_heads"),
        config.flag("use_bias"),
    )
    config.require("embedding_dim", None, hidden_size)
    eps = config.number("norm_eps")
    norm = rmsnorm(eps, **biases(has_bias, "bias"))
    token_mixer: Table = {
        "type": "mlstm",
        "num_heads": head_count,
        "use_bias": has_bias,
        "chunk_size": config.integer("chunk_size"),
        "norm_eps": eps,
    }
    qk_head_dim = _head_size(config, "qk_dim_factor", hidden_size, head_count)
    token_mixer |= {
        "qk_head_dim": qk_head_dim,
        "v_head_dim": _head_size(config, "v_dim_factor", hidden_size, head_count),
    }
    token_mixer["gate_soft_cap"] = config.number("gate_soft_cap")
    width_multiple = config.integer("ffn_round_up_to_multiple_of")
    ffn_proj_factor = config.number("ffn_proj_factor")
    ffn_width = floor((hidden_size * ffn_proj_factor + width_multiple - 1) // width_multiple * width_multiple)
    ffn: Table = {
        "intermediate_size": ffn_width,
        "hidden_act": "silu",
        "gated": True,
        **biases(has_bias, "gate_bias", "up_bias", "down_bias"),
    }
    block: Table = layer_table(token_mixer, ffn, norm)
    depth_field = {"num_hidden_layers": config.integer("num_blocks")} if config.has("num_blocks") else {}
    return {**decoder(config, block, rmsnorm(eps), stack=depth_field), "tie_word_embeddings": False}


def _head_size(config: Config, factor_field: str, hidden_size: int, head_count: int) -> int:
    """Returns the size of a query, key or value head: factor · hidden_size / heads.

    The total must be a multiple of 64 for the class's cache.
    """
    inner_width = floor(hidden_size * config.number(factor_field))
    if inner_width <= 0 or inner_width % 64:
        raise config.field_error(factor_field, f"a factor that makes a multiple of 64 of hidden_size {hidden_size}")
    return config.quotient("num_heads", inner_width, head_count)


RUNTIME_FIELDS = field_names("""
    head_dim add_embedding_dropout add_forward_backend_padding add_post_blocks_norm add_post_norm add_qk_norm
    cell_norm_eps force_bos_token_insert forward_backend_name gate_linears igate_bias_init_range lm_head_bias
    logit_soft_cap mlstm_round_up_to_multiple_of
    """)
"""Ignored config fields: choices of kernels, and a norm that the class always has."""


def _width_factor(field_name: str) -> FieldWriter:
    """Returns a function that gives a config field the width of all heads divided by the model's width."""
    return lambda s: (
        require_present(s.first_value("num_heads")) * require_present(s.first_value(field_name)) / s.spec.hidden_size
    )


FAMILIES = {
    "xlstm": Family(
        _read_xlstm,
        ignored_fields=RUNTIME_FIELDS,
        field_writers={
            "qk_dim_factor": _width_factor("qk_head_dim"),
            "v_dim_factor": _width_factor("v_head_dim"),
            "use_bias": lambda s: s.first_value("use_bias"),
            "ffn_round_up_to_multiple_of": lambda s: s.network.intermediate_size,
            "ffn_proj_factor": lambda s: s.network.intermediate_size / s.spec.hidden_size,
        },
        dropout_fields={},
    )
}
