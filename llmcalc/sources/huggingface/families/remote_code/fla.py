"""The library flash-linear-attention's own models: its transformer, gated DeltaNet, Samba, Mamba and Mamba-2.

Transformer, gated DeltaNet and Samba have RMSNorm before each sublayer and a gated FFN; a table `attn` gives some of
their layers softmax attention. Sources: the library's `configuration_*.py` and `modeling_*.py`, in `Family.source`, and
its `fla/layers` and `fla/modules/mlp.py`.
"""

from __future__ import annotations

from math import isclose
from typing import Any

from .....components.base import LARGEST
from ...code_addresses import GITHUB
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    QKV,
    Table,
    biases,
    decoder,
    glu,
    layer_table,
    qk_norm_fields,
    rmsnorm,
    rope,
    stack_of_combined_kinds,
)
from ..recurrent.delta import gated_delta_net
from ..recurrent.mamba import mamba_mixer, read_mamba, read_mamba2

FLA = f"{GITHUB}fla-org/flash-linear-attention/blob/main/fla/models/"


def _read_transformer(config: Config) -> Table:
    qk_norms = qk_norm_fields(rmsnorm(1e-5)) if config.flag("qk_norm") else {}
    return _decoder(config, {**_softmax_attention(config), **qk_norms})


def _read_gated_deltanet(config: Config) -> Table:
    """Reads gated DeltaNet with the output gate and the convolution that published models have."""
    config.require("use_gate", True)
    config.require("use_short_conv", True)
    heads, key_dim = config.integer("num_attention_heads"), config.integer("head_dim")
    value_expansion = config.number("expand_v")
    value_dim = int(key_dim * value_expansion)
    if not isclose(value_dim, key_dim * value_expansion, rel_tol=1e-5) or not 1 <= value_dim <= LARGEST:
        raise config.error("expand_v", value_expansion, f"a multiple of 1 / head_dim ({key_dim})")
    mixer = gated_delta_net(
        config,
        linear_num_key_heads=heads,
        linear_num_value_heads=config.optional_integer("num_v_heads") or heads,
        linear_key_head_dim=key_dim,
        linear_value_head_dim=value_dim,
        linear_conv_kernel_dim=config.integer("conv_size"),
        linear_allow_neg_eigval=config.flag("allow_neg_eigval"),
    )
    return _decoder(config, mixer)


def _read_samba(config: Config) -> Table:
    """Reads Samba, whose `intermediate_size` is the width of Mamba, not of the FFN.

    Without a table `attn` in the config, each second of the first 18 layers has attention with a window.
    """
    config.require("use_conv_bias", True)
    ffn_width = _ffn_width(config.with_fields(intermediate_size=None))
    if "attn" not in config.data:
        layers = [*range(1, min(18, config.integer("num_hidden_layers")), 2)]
        config = config.with_fields(attn={"layers": layers, "num_heads": 18, "window_size": 2048})
    return _decoder(config, mamba_mixer(config), ffn_width)


def _read_mamba2(config: Config) -> Table:
    """Reads Mamba-2 as in transformers, without the library's options that change the norm and D."""
    config.require("rmsnorm", True)
    config.require("D_has_hdim", False)
    if config.has("num_heads"):
        return read_mamba2(config)
    inner_size, head_dim = config.integer("expand") * config.integer("hidden_size"), config.integer("head_dim")
    return read_mamba2(config.with_fields(num_heads=config.quotient("head_dim", inner_size, head_dim)))


def _decoder(config: Config, mixer: Table, ffn_width: int | None = None) -> Table:
    """Returns a decoder whose layers have a mixer, or softmax attention where the table `attn` lists them.

    ffn_width: default that of the config.
    """
    config.require("attnres_block_size", None)
    norm = rmsnorm(config.number("rms_norm_eps"))
    ffn = glu(config, ffn_width=ffn_width or _ffn_width(config))
    layer_kinds = ["mixer"] * config.integer("num_hidden_layers")
    attention_by_kind: Table = {"mixer": {}}
    for section_index, config_section in _attention_sections(config).items():
        layer_kind = f"attention{section_index}"
        attention_by_kind[layer_kind] = {"attention": {"type": "attention", **_softmax_attention(config_section)}}
        for layer in config_section.integers("layers"):
            if layer >= len(layer_kinds) or layer_kinds[layer] != "mixer":
                expected_text = f"layers from 0 to {len(layer_kinds) - 1}, each once"
                raise config_section.error("layers", config_section.get("layers"), expected_text)
            layer_kinds[layer] = layer_kind
        config_section.finish(frozenset(), config)
    stack = stack_of_combined_kinds((layer_kinds, attention_by_kind))
    return decoder(config, layer_table(mixer, ffn, norm), norm, stack=stack)


def _attention_sections(config: Config) -> dict[str, Config]:
    """Returns the tables of `attn`, which is a table, a list of tables or null; key: the table's place in the list."""
    stated_tables = config.get("attn")
    if stated_tables is None:
        return {}
    is_list = isinstance(stated_tables, list)
    tables = stated_tables if is_list else [stated_tables]
    if not all(isinstance(table, dict) for table in tables):
        raise config.error("attn", stated_tables, "a table of fields, or a list of tables")
    return {
        f"_{section_index}" if is_list else "": Config(
            {**table, "hidden_size": config.integer("hidden_size")},
            ATTENTION_DEFAULTS,
            config.model_type,
            location=f"{config.location}attn[{section_index}]." if is_list else f"{config.location}attn.",
            aliases=ATTENTION_NAMES,
        )
        for section_index, table in enumerate(tables)
    }


def _softmax_attention(config: Config) -> Table:
    """Returns attention as wide as the model, with RoPE and no bias after it. config: the model's, or a table of it."""
    heads, window = config.integer("num_attention_heads"), config.optional_integer("sliding_window")
    config.quotient("num_attention_heads", config.integer("hidden_size"), heads)
    kv_heads = config.optional_integer("num_key_value_heads") or heads
    if heads % kv_heads:
        raise config.error("num_key_value_heads", kv_heads, f"a divisor of {heads}")
    return {
        "num_attention_heads": heads,
        "position": rope(config),
        **({"num_key_value_heads": kv_heads} if kv_heads != heads else {}),
        **({"sliding_window": window} if window is not None else {}),
        **biases(config.flag("qkv_bias"), *QKV),
    }


def _ffn_width(config: Config) -> int:
    """Returns `intermediate_size`, else 2/3 of `hidden_ratio` widths of the model, rounded up to a multiple of 256."""
    stated_width = config.optional_integer("intermediate_size")
    config.require("hidden_act", "swish")
    hidden_ratio = config.optional_integer("hidden_ratio") or 4
    ffn_width = stated_width or -(-int(config.integer("hidden_size") * hidden_ratio * 2 / 3) // 256) * 256
    if ffn_width > LARGEST:
        raise config.error("hidden_ratio", hidden_ratio, f"a width of at most {LARGEST}")
    return ffn_width


ATTENTION_NAMES = {
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "sliding_window": "window_size",
}
NAMES = {**ATTENTION_NAMES, "rms_norm_eps": "norm_eps"}

ATTENTION_DEFAULTS: dict[str, Any] = {"num_kv_heads": None, "window_size": None, "qkv_bias": False}

COMMON: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "hidden_ratio": 4,
    "intermediate_size": None,
    "hidden_act": "swish",
    "max_position_embeddings": 2048,
    "norm_eps": 1e-6,
    "attn": None,
    "attnres_block_size": None,
    "tie_word_embeddings": False,
}
"""Defaults that the library's configuration classes have in common."""

IGNORED = field_names(
    """
    attn_mode elementwise_affine fuse_cross_entropy fuse_linear_cross_entropy fuse_norm fuse_swiglu hidden_ratio
    norm_first use_l2warp
    """
)
"""Fields that choose kernels, and a field of earlier versions that has the norm in the mixer's module."""

STATE_SPACE: dict[str, Any] = {
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
}
"""Defaults of Mamba's mixer."""

OF_STEPS = field_names(
    """
    A_init_range conv_init dt_init_floor dt_init_scheme dt_limit dt_max dt_min dt_scale norm_before_gate
    rescale_prenorm_residual residual_in_fp32 rms_norm time_step_floor time_step_init_scheme time_step_limit
    time_step_max time_step_min time_step_rank time_step_scale
    """
)
"""Fields of initialisation and of the range of Δ, in this and earlier versions."""

FAMILIES = {
    "transformer": Family(
        _read_transformer,
        {**COMMON, **ATTENTION_DEFAULTS, "num_heads": 32, "qk_norm": False},
        IGNORED | {"attention_bias"},  # of earlier versions, whose class does not read it
        aliases=NAMES,
        dropout_fields={},
        source=f"{FLA}transformer",
    ),
    "gated_deltanet": Family(
        _read_gated_deltanet,
        {
            **COMMON,
            "num_hidden_layers": 21,
            "expand_v": 2.0,
            "use_gate": True,
            "use_short_conv": True,
            "allow_neg_eigval": False,
            "conv_size": 4,
            "head_dim": 256,
            "num_heads": 6,
            "num_v_heads": None,
        },
        IGNORED,
        aliases=NAMES,
        dropout_fields={},
        source=f"{FLA}gated_deltanet",
    ),
    "samba": Family(
        _read_samba,
        {
            **COMMON,
            **STATE_SPACE,
            "hidden_size": 2304,
            "num_hidden_layers": 18,
            "hidden_act": "swish",
            "time_step_rank": "auto",
            "norm_eps": 1e-5,
        },
        IGNORED | OF_STEPS,
        aliases=NAMES,
        dropout_fields={},
        source=f"{FLA}samba",
    ),
    "fla_mamba": Family(
        read_mamba,
        {
            "vocab_size": 32000,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            **STATE_SPACE,
            "hidden_act": "silu",
            "dt_rank": "auto",
            "norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        IGNORED | OF_STEPS,
        aliases={"layer_norm_epsilon": "norm_eps", "time_step_rank": "dt_rank"},
        dropout_fields={},
        source=f"{FLA}mamba",
    ),
    "fla_mamba2": Family(
        _read_mamba2,
        {
            "vocab_size": 32000,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "head_dim": 64,
            "state_size": 128,
            "expand": 2,
            "conv_kernel": 4,
            "n_groups": 1,
            "use_bias": False,
            "use_conv_bias": True,
            "hidden_act": "silu",
            "rmsnorm": True,
            "D_has_hdim": False,
            "chunk_size": 256,
            "norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        IGNORED | OF_STEPS,
        aliases={"layer_norm_epsilon": "norm_eps"},
        dropout_fields={},
        source=f"{FLA}mamba2",
    ),
}
