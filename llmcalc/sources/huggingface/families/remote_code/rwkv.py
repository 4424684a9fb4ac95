"""RWKV-5, RWKV-6 and RWKV-7 as in their Hugging Face classes; a norm follows the embeddings.

Sources: the modeling files in `Family.source` of each model type.
"""

from __future__ import annotations

from .....components.base import LARGEST_SIZE
from ...code_addresses import HUB
from ...config import Config
from ...family import Family, field_names
from ...parts import Table, decoder, layer_table, layernorm

LARGE_HIDDEN_SIZE = 4096
"""Hidden size at which RWKV-6's low ranks are twice as large."""


def _read_rwkv6(config: Config) -> Table:
    """Reads RWKV-6, whose class derives the ranks of its low-rank projections from the hidden size."""
    rank_factor = 2 if config.integer("hidden_size") == LARGE_HIDDEN_SIZE else 1
    return _rwkv_with_heads(config, {"shift_rank": 32 * rank_factor, "decay_rank": 64 * rank_factor})


def _rwkv_with_heads(config: Config, rank_fields: Table) -> Table:
    """Returns a model of RWKV-5 or RWKV-6. The class does not read the config's num_attention_heads."""
    hidden_size, eps = config.integer("hidden_size"), config.number("layer_norm_epsilon")
    head_dim = config.integer("head_size")
    config.fields_read.update(("num_attention_heads", "head_dim"))
    attention_width = config.optional_integer("attention_hidden_size") or hidden_size
    time_mixing = {
        "type": "rwkv_head_mix",
        "num_heads": config.quotient("head_size", attention_width, head_dim),
        "head_dim": head_dim,
        "norm_eps": eps * config.integer("head_size_divisor") ** 2,
        **rank_fields,
    }
    attention_width = config.optional_integer("intermediate_size") or max(32, 7 * hidden_size // 64 * 32)
    if attention_width > LARGEST_SIZE:
        raise config.error(
            "hidden_size", hidden_size, f"a network of at most {LARGEST_SIZE} channels, 3.5 times as wide"
        )
    channel_mixing = {"type": "rwkv_channel_mix", "intermediate_size": attention_width}
    return _with_first_norm(config, time_mixing, channel_mixing, eps)


def _with_first_norm(
    config: Config, time_mixing: Table, channel_mixing: Table, eps: float, first_mixing_fields: Table | None = None
) -> Table:
    """Returns a model of RWKV's layers. first_mixing_fields: mixing fields of the first layer that differ."""
    norm = layernorm(eps)
    block: Table = layer_table(time_mixing, channel_mixing, norm)
    layer_changes: Table = {
        "input_norm": norm,
        **({"attention": {**time_mixing, **first_mixing_fields}} if first_mixing_fields else {}),
    }
    stack_fields = {"variants": {"first": layer_changes}, "first_layers": ["first"], "pattern": ["block"]}
    return decoder(config, block, norm, stack=stack_fields)


def _read_rwkv7(config: Config) -> Table:
    """Reads RWKV-7 in flash-linear-attention's form; ranks that the config leaves out follow from the sizes."""
    for field_name in ("attn", "norm_first", "norm_bias"):
        config.require(field_name, config.defaults[field_name])
    hidden_size, head_dim = config.integer("hidden_size"), config.integer("head_dim")
    value_widths = config.get("value_dim")
    if value_widths not in (None, hidden_size, [hidden_size] * config.integer("num_hidden_layers")):
        raise config.error("value_dim", value_widths, f"{hidden_size}, the hidden_size, in every layer")
    head_count, eps = config.quotient("head_dim", hidden_size, head_dim), config.number("norm_eps")
    config.fields_read.update(("num_heads", "num_attention_heads"))
    time_mixing = {
        "type": "rwkv7_time_mix",
        "num_heads": head_count,
        "head_dim": head_dim,
        "norm_eps": eps * head_dim,
        **{
            rank_field: config.optional_integer(field_name)
            or max(32, round(rank_factor * hidden_size**0.5 * (rank_scale or head_dim / 64) / 32) * 32)
            for rank_field, field_name, rank_factor, rank_scale in (
                ("decay_rank", "decay_low_rank_dim", 2.5, None),
                ("rate_rank", "a_low_rank_dim", 2.5, None),
                ("value_rank", "v_low_rank_dim", 1.7, None),
                ("gate_rank", "gate_low_rank_dim", 5, 1),
            )
        },
    }
    width_ratio = config.number("hidden_ratio") if config.get("hidden_ratio") is not None else 4.0
    ffn_width = config.optional_integer("intermediate_size") or -(-int(hidden_size * width_ratio) // 32) * 32
    if not 0 < ffn_width <= LARGEST_SIZE:
        raise config.field_error("hidden_ratio", f"a network of 1 to {LARGEST_SIZE} channels")
    channel_mixing = {"type": "rwkv7_channel_mix", "intermediate_size": ffn_width}
    return _with_first_norm(config, time_mixing, channel_mixing, eps, {"first": True})


RWKV_DEFAULTS = {
    "vocab_size": 65536,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "head_size": 64,
    "head_size_divisor": 8,
    "attention_hidden_size": None,
    "intermediate_size": None,
    "layer_norm_epsilon": 1e-5,
    "tie_word_embeddings": False,
}

FAMILIES = {
    **{
        kind: Family(
            read,
            RWKV_DEFAULTS,
            frozenset({"rescale_every", "model_version"}),
            aliases={"max_position_embeddings": "context_length"},
            source=code,
            dropout_fields={},
        )
        for kind, read, code in (
            ("rwkv5", lambda config: _rwkv_with_heads(config, {}), f"{HUB}RWKV/rwkv-5-world-1b5 modeling_rwkv5.py"),
            ("rwkv6", _read_rwkv6, f"{HUB}RWKV/rwkv-6-world-1b6 modeling_rwkv6.py"),
        )
    },
    "rwkv7": Family(
        _read_rwkv7,
        {
            "hidden_size": 2048,
            "hidden_ratio": 4,
            "intermediate_size": None,
            "num_hidden_layers": 24,
            "head_dim": 64,
            "decay_low_rank_dim": 64,
            "gate_low_rank_dim": 128,
            "a_low_rank_dim": 64,
            "v_low_rank_dim": 16,
            "max_position_embeddings": 2048,
            "norm_first": True,
            "norm_bias": True,
            "norm_eps": 1e-5,
            "attn": None,
            "value_dim": None,
            "tie_word_embeddings": False,
            "vocab_size": 32000,
        },
        field_names("attn_mode fuse_cross_entropy fuse_linear_cross_entropy fuse_norm hidden_act use_l2warp"),
        aliases={"head_dim": "head_size"},
        unread_aliases=frozenset(),
        source="https://github.com/fla-org/flash-linear-attention/blob/main/fla/models/rwkv7/modeling_rwkv7.py",
        dropout_fields={},
    ),
}
