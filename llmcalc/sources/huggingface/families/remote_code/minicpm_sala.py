"""MiniCPM-SALA: lightning attention in listed layers, sparse attention with an output gate in others.

Source: the modeling file in `Family.source`; sequences of up to `dense_len` tokens attend to all tokens.
"""

from __future__ import annotations

from .....errors import short_repr
from ...code_addresses import HUB
from ...config import Config
from ...family import Family
from ...parts import Table, attention, attention_biases, decoder_of_kinds, glu, layer_table, rmsnorm, rope

SPARSE_TYPE, LIGHTNING_TYPES = "minicpm4", ("lightning", "lightning_attn", "lightning-attn")


def _read_minicpm_sala(config: Config) -> Table:
    """Reads MiniCPM-SALA. Its scales of the embedding and of the residual stream have no parameters."""
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    mixer_types = config.texts("mixer_types")
    if len(mixer_types) != depth or not {*mixer_types} <= {SPARSE_TYPE, *LIGHTNING_TYPES}:
        raise config.error("mixer_types", mixer_types, f"{depth} times {SPARSE_TYPE} or {LIGHTNING_TYPES[-1]}")
    if config.has("sparse_config"):
        dense_length = config.table("sparse_config").get("dense_len")
        length_text = "" if dense_length is None else f" of more than {short_repr(dense_length)} tokens"
        config.notes.append(f"sparse_config: that a sequence{length_text} attends to some blocks alone is not counted")
    block = layer_table(_sparse_attention(config), glu(config), norm)
    layer_changes: Table = {"sparse": {}, "lightning": {"attention": _lightning_attention(config, norm)}}
    layer_kinds = ["sparse" if mixer_type == SPARSE_TYPE else "lightning" for mixer_type in mixer_types]
    return decoder_of_kinds(config, block, norm, (layer_kinds, layer_changes))


def _sparse_attention(config: Config) -> Table:
    """Returns the grouped-query attention of the sparse layers."""
    output_gate: Table = {"output_gate": {"per": "element"}} if config.flag("attn_use_output_gate") else {}
    position_encoding = rope(config) if config.flag("attn_use_rope") else None
    return attention(config, position=position_encoding, **output_gate, **attention_biases(config))


def _lightning_attention(config: Config, norm: Table) -> Table:
    """Returns the lightning attention. norm: the optional norm of queries and keys."""
    head_count = config.integer("lightning_nh")
    config.require("lightning_nkv", head_count)
    for field_name in ("use_output_gate", "use_output_norm"):
        config.require(field_name, True)
    has_bias = config.flag("attention_bias")
    return {
        "type": "lightning",
        "num_attention_heads": head_count,
        "head_dim": config.integer("lightning_head_dim"),
        "hidden_act": "identity",
        "qkv_bias": has_bias,
        "o_bias": has_bias,
        **({"position": rope(config)} if config.flag("lightning_use_rope") else {}),
        **({"qk_norm": norm} if config.flag("qk_norm") else {}),
    }


FAMILIES = {
    "minicpm_sala": Family(
        _read_minicpm_sala,
        {
            "num_key_value_heads": None,
            "head_dim": None,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "attention_bias": False,
            "attn_use_output_gate": False,
            "attn_use_rope": True,
            "lightning_use_rope": True,
            "qk_norm": False,
            "use_output_gate": False,
            "use_output_norm": False,
            "tie_word_embeddings": False,
        },
        frozenset({"dim_model_base", "lightning_scale", "mup_denominator", "scale_depth", "scale_emb", "shift_labels"}),
        source=f"{HUB}openbmb/MiniCPM-SALA modeling_minicpm_sala.py",
    )
}
