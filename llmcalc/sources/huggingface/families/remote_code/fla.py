"""Models of the library flash-linear-attention: its transformer, delta rules, RetNet, GLA, HGRN2, Samba, Mambas.

All but the Mambas have RMSNorm before each sublayer and a gated FFN; a table `attn` gives some of their layers softmax
attention. Sources: the library's `configuration_*.py` and `modeling_*.py`, in `Family.source`, and
its `fla/layers` and `fla/modules/mlp.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isclose
from typing import Any

from .....components.base import LARGEST_SIZE
from ...code_addresses import GITHUB
from ...config import Config
from ...family import Family, field_names
from ...parts import (
    ACTIVATIONS,
    QKV_BIASES,
    Table,
    biases,
    decoder_of_kinds,
    glu,
    layer_table,
    qk_norm_fields,
    rmsnorm,
    rope,
)
from ..recurrent.delta import gated_delta_net, kda
from ..recurrent.mamba import mamba_mixer, read_mamba, read_mamba2

FLA_CODE_FOLDER = f"{GITHUB}fla-org/flash-linear-attention/blob/main/fla/models/"


def _read_transformer(config: Config) -> Table:
    qk_norms = qk_norm_fields(rmsnorm(1e-5)) if config.flag("qk_norm") else {}
    return _decoder(config, {**_softmax_attention(config), **qk_norms})


def _read_gated_deltanet(config: Config) -> Table:
    """Reads gated DeltaNet with the output gate and the convolution that published models have."""
    config.require_fields(use_gate=True, use_short_conv=True)
    head_count, key_dim = config.integer("num_attention_heads"), config.integer("head_dim")
    value_expansion = config.number("expand_v")
    value_dim = int(key_dim * value_expansion)
    if not isclose(value_dim, key_dim * value_expansion, rel_tol=1e-5) or not 1 <= value_dim <= LARGEST_SIZE:
        raise config.error("expand_v", value_expansion, f"a multiple of 1 / head_dim ({key_dim})")
    token_mixer = gated_delta_net(
        config,
        linear_num_key_heads=head_count,
        linear_num_value_heads=config.optional_integer("num_v_heads") or head_count,
        linear_key_head_dim=key_dim,
        linear_value_head_dim=value_dim,
        linear_conv_kernel_dim=config.integer("conv_size"),
        linear_allow_neg_eigval=config.flag("allow_neg_eigval"),
    )
    return _decoder(config, token_mixer)


def _read_delta_net(config: Config) -> Table:
    """Reads DeltaNet with the convolution, the norms and the β that published models have."""
    for field_name, required_value in DELTA_NET_REQUIRED.items():
        config.require(field_name, required_value)
    attention_table = {
        "type": "delta_net",
        "linear_num_heads": config.integer("num_attention_heads"),
        "linear_key_head_dim": _head_size(config, "expand_k"),
        "linear_value_head_dim": _head_size(config, "expand_v"),
        "linear_conv_kernel_dim": config.integer("conv_size"),
        "linear_allow_neg_eigval": config.flag("allow_neg_eigval"),
        "output_gate": config.flag("use_gate"),
        "norm_eps": config.number("rms_norm_eps"),
    }
    return _decoder(config, attention_table)


def _read_retnet(config: Config) -> Table:
    """Reads RetNet: its class ignores the convolution's fields, and its rotary kernel takes heads of up to 256."""
    if _head_size(config, "expand_k") > WIDEST_RETNET_HEAD:
        raise config.error("expand_k", config.number("expand_k"), f"heads of at most {WIDEST_RETNET_HEAD}")
    return _decoder(config, {"type": "retention", **_linear_attention(config)})


def _read_gla(config: Config) -> Table:
    config.require_fields(use_short_conv=False, clamp_min=None)
    return _decoder(config, {"type": "gated_linear_attention", **_linear_attention(config)})


def _linear_attention(config: Config) -> Table:
    """Returns the common fields of linear attention with a decay: heads, head sizes, output gate and norm."""
    config.require("elementwise_affine", True)
    head_count = config.integer("num_attention_heads")
    key_head_count = config.optional_integer("num_key_value_heads") or head_count
    if head_count % key_head_count:
        raise config.error("num_key_value_heads", key_head_count, f"a divisor of {head_count}")
    return {
        "num_attention_heads": head_count,
        "num_key_value_heads": key_head_count,
        "linear_key_head_dim": _head_size(config, "expand_k"),
        "linear_value_head_dim": _head_size(config, "expand_v"),
        "output_gate": config.flag("use_output_gate"),
        "norm_eps": config.number("rms_norm_eps"),
        **({"feature_map": config.choice(ACTIVATIONS, "feature_map")} if config.has("feature_map") else {}),
    }


def _read_hgrn2(config: Config) -> Table:
    """Reads HGRN2. Its class has a table of lower bounds, one row per layer, and subtracts the first row from all."""
    config.require_fields(use_short_conv=False, elementwise_affine=True)
    hidden_size, has_lower_bounds = config.integer("hidden_size"), config.flag("use_lower_bound")
    head_count = config.optional_integer("num_attention_heads")
    key_dim = config.optional_integer("expand_ratio")
    if key_dim is None:
        key_dim = config.quotient("num_attention_heads", hidden_size, config.integer("num_attention_heads"))
    if hidden_size % key_dim:
        raise config.error("expand_ratio", key_dim, f"a divisor of hidden_size {hidden_size}")
    if head_count not in (None, hidden_size // key_dim):
        raise config.error("num_heads", head_count, f"hidden_size / expand_ratio ({hidden_size // key_dim}), or none")
    attention_table = {
        "type": "hgrn2",
        "num_attention_heads": hidden_size // key_dim,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": key_dim,
        "lower_bound": has_lower_bounds,
        "norm_eps": 1e-5,
    }
    if not has_lower_bounds:
        return _decoder(config, attention_table)
    attention_layer_count = sum(len(section.integers("layers")) for section in _attention_sections(config).values())
    if attention_layer_count:
        config.notes.append(
            "attn: the table of lower bounds has a row for its layers too, which is not counted: "
            f"{attention_layer_count * hidden_size:,} parameters"
        )
    return _decoder(config, attention_table, first_mixer={**attention_table, "first": True})


def _head_size(config: Config, field_name: str) -> int:
    """Returns a head's size: a config field times the model's width, rounded down, divided by the heads."""
    head_count, expansion_ratio = config.integer("num_attention_heads"), config.number(field_name)
    scaled_width = int(config.integer("hidden_size") * expansion_ratio)
    if not 1 <= scaled_width <= LARGEST_SIZE or scaled_width % head_count:
        raise config.error(field_name, expansion_ratio, f"a width that is a multiple of num_heads ({head_count})")
    return scaled_width // head_count


def _read_kda(config: Config) -> Table:
    """Reads Kimi delta attention with equal head sizes and unbounded decays, as in published models."""
    for field_name, required_value in KDA_REQUIRED.items():
        config.require(field_name, required_value)
    head_count = config.integer("num_attention_heads")
    config.require("num_v_heads", None, head_count)
    head_dim = config.integer("head_dim")
    head_sizes = {"num_heads": head_count, "head_dim": head_dim, "short_conv_kernel_size": config.integer("conv_size")}
    return _decoder(config, kda(config, Config(head_sizes, {}, config.model_type), output_gate_bias=True))


def _read_samba(config: Config) -> Table:
    """Reads Samba, whose `intermediate_size` is the width of Mamba, not of the FFN.

    Without a table `attn` in the config, each second of the first 18 layers has attention with a window.
    """
    config.require("use_conv_bias", True)
    ffn_width = _ffn_width(config.with_fields(intermediate_size=None))
    if "attn" not in config.config_fields:
        layer_indices = [*range(1, min(18, config.integer("num_hidden_layers")), 2)]
        config = config.with_fields(attn={"layers": layer_indices, "num_heads": 18, "window_size": 2048})
    return _decoder(config, mamba_mixer(config), ffn_width)


def _read_mamba2(config: Config) -> Table:
    """Reads Mamba-2 with the fields of transformers; the library's options for the norm and D are refused."""
    config.require_fields(rmsnorm=True, D_has_hdim=False)
    if config.has("num_heads"):
        return read_mamba2(config)
    inner_size, head_dim = config.integer("expand") * config.integer("hidden_size"), config.integer("head_dim")
    return read_mamba2(config.with_fields(num_heads=config.quotient("head_dim", inner_size, head_dim)))


def _decoder(
    config: Config, token_mixer: Table, ffn_width: int | None = None, first_mixer: Table | None = None
) -> Table:
    """Returns a decoder whose layers have the mixer, or softmax attention in the layers that the table `attn` lists.

    ffn_width: default that of the config. first_mixer: the mixer of the first layer, by default that of all.
    """
    config.require("attnres_block_size", None)
    norm = rmsnorm(config.number("rms_norm_eps"))
    ffn = glu(config, ffn_width=ffn_width or _ffn_width(config))
    layer_kinds = ["mixer"] * config.integer("num_hidden_layers")
    attention_by_kind: Table = {"mixer": {}}
    if first_mixer is not None:
        layer_kinds[0] = "first"
        attention_by_kind["first"] = {"attention": first_mixer}
    for list_position, attention_config in _attention_sections(config).items():
        attention_kind = f"attention{list_position}"
        attention_by_kind[attention_kind] = {"attention": {"type": "attention", **_softmax_attention(attention_config)}}
        for layer_index in attention_config.integers("layers"):
            if layer_index >= len(layer_kinds) or layer_kinds[layer_index] not in ("mixer", "first"):
                expected_text = f"layers from 0 to {len(layer_kinds) - 1}, each once"
                raise attention_config.field_error("layers", expected_text)
            layer_kinds[layer_index] = attention_kind
        attention_config.finish(frozenset(), config)
    return decoder_of_kinds(config, layer_table(token_mixer, ffn, norm), norm, (layer_kinds, attention_by_kind))


def _attention_sections(config: Config) -> dict[str, Config]:
    """Returns the tables in `attn` (a table, a list of tables or null) by their index in the list."""
    stated_tables = config.get("attn")
    if stated_tables is None:
        return {}
    is_list = isinstance(stated_tables, list)
    tables = stated_tables if is_list else [stated_tables]
    if not all(isinstance(table, dict) for table in tables):
        raise config.error("attn", stated_tables, "a table of fields, or a list of tables")
    return {
        f"_{list_position}" if is_list else "": Config(
            {**table, "hidden_size": config.integer("hidden_size")},
            ATTENTION_DEFAULTS,
            config.model_type,
            location=f"{config.location}attn[{list_position}]." if is_list else f"{config.location}attn.",
            aliases=ATTENTION_ALIASES,
        )
        for list_position, table in enumerate(tables)
    }


def _softmax_attention(config: Config) -> Table:
    """Returns attention with RoPE, as wide as the model. config: the model's config or one of its tables `attn`."""
    head_count, window_size = config.integer("num_attention_heads"), config.optional_integer("sliding_window")
    config.quotient("num_attention_heads", config.integer("hidden_size"), head_count)
    kv_head_count = config.optional_integer("num_key_value_heads") or head_count
    if head_count % kv_head_count:
        raise config.error("num_key_value_heads", kv_head_count, f"a divisor of {head_count}")
    return {
        "num_attention_heads": head_count,
        "position": rope(config),
        **({"num_key_value_heads": kv_head_count} if kv_head_count != head_count else {}),
        **({"sliding_window": window_size} if window_size is not None else {}),
        **biases(config.flag("qkv_bias"), *QKV_BIASES),
    }


def _ffn_width(config: Config) -> int:
    """Returns `intermediate_size`, else 2/3 · `hidden_ratio` · hidden_size, rounded up to a multiple of 256."""
    stated_width = config.optional_integer("intermediate_size")
    config.require("hidden_act", "swish")
    width_ratio = config.optional_integer("hidden_ratio") or 4
    ffn_width = stated_width or -(-int(config.integer("hidden_size") * width_ratio * 2 / 3) // 256) * 256
    if ffn_width > LARGEST_SIZE:
        raise config.error("hidden_ratio", width_ratio, f"a width of at most {LARGEST_SIZE}")
    return ffn_width


ATTENTION_ALIASES = {
    "num_attention_heads": "num_heads",
    "num_key_value_heads": "num_kv_heads",
    "sliding_window": "window_size",
}
ALIASES = {**ATTENTION_ALIASES, "rms_norm_eps": "norm_eps"}

ATTENTION_DEFAULTS: dict[str, Any] = {"num_kv_heads": None, "window_size": None, "qkv_bias": False}

COMMON_DEFAULTS: dict[str, Any] = {
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
"""Defaults that the configuration classes of flash-linear-attention have in common."""

IGNORED_FIELDS = field_names("""
    attn_mode elementwise_affine fuse_cross_entropy fuse_linear_cross_entropy fuse_norm fuse_swiglu hidden_ratio
    norm_first use_l2warp
    """)
"""Fields that choose kernels, and a field of earlier versions that has the norm in the mixer's module."""

DELTA_NET_REQUIRED: dict[str, Any] = {
    "use_short_conv": True,
    "use_beta": True,
    "qk_norm": "l2",
    "qk_activation": "silu",
    "share_conv_kernel": False,
    "use_elu": False,
    "use_rope": False,
}
"""Required values of DeltaNet's other config fields; the last three fields are of earlier versions."""

KDA_REQUIRED: dict[str, Any] = {
    "use_short_conv": True,
    "allow_neg_eigval": False,
    "safe_gate": False,
    "lower_bound": None,
    "expand_v": 1.0,
}
"""Required values of the other config fields of Kimi delta attention."""

LINEAR_ATTENTION_DEFAULTS: dict[str, Any] = {
    "expand_k": 1.0,
    "num_kv_heads": None,
    "feature_map": None,
    "use_output_gate": True,
    "elementwise_affine": True,
}
"""Defaults of linear attention with a decay."""

WIDEST_RETNET_HEAD = 256
"""The largest head of RetNet (fla/layers/multiscale_retention.py)."""

UNREAD_BY_LINEAR = field_names("conv_size share_conv_kernel use_gk use_gv")
"""Ignored config fields of a convolution and of gates that these classes do not have."""

STATE_SPACE_DEFAULTS: dict[str, Any] = {
    "state_size": 16,
    "expand": 2,
    "conv_kernel": 4,
    "use_bias": False,
    "use_conv_bias": True,
}
"""Defaults of Mamba's mixer."""

TIME_STEP_FIELDS = field_names("""
    A_init_range conv_init dt_init_floor dt_init_scheme dt_limit dt_max dt_min dt_scale norm_before_gate
    rescale_prenorm_residual residual_in_fp32 rms_norm time_step_floor time_step_init_scheme time_step_limit
    time_step_max time_step_min time_step_rank time_step_scale
    """)
"""Fields of initialisation and of the range of Δ, in this and earlier versions."""


def _fla_family(
    model_name: str,
    read_model: Callable[[Config], Table],
    defaults: Mapping[str, Any],
    ignored_fields: frozenset[str],
    aliases: Mapping[str, str] = ALIASES,
) -> Family:
    """Returns the `Family` of a flash-linear-attention model, which has no dropout. model_name: its folder there."""
    source = f"{FLA_CODE_FOLDER}{model_name}"
    return Family(read_model, defaults, ignored_fields, aliases=aliases, dropout_fields={}, source=source)


FAMILIES = {
    "transformer": _fla_family(
        "transformer",
        _read_transformer,
        {**COMMON_DEFAULTS, **ATTENTION_DEFAULTS, "num_heads": 32, "qk_norm": False},
        IGNORED_FIELDS | {"attention_bias"},  # of earlier versions, whose class does not read it
    ),
    "gated_deltanet": _fla_family(
        "gated_deltanet",
        _read_gated_deltanet,
        {
            **COMMON_DEFAULTS,
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
        IGNORED_FIELDS,
    ),
    "delta_net": _fla_family(
        "delta_net",
        _read_delta_net,
        {
            **COMMON_DEFAULTS,
            **DELTA_NET_REQUIRED,
            "expand_k": 1.0,
            "expand_v": 1.0,
            "use_gate": False,
            "allow_neg_eigval": False,
            "conv_size": 4,
            "num_heads": 16,
        },
        IGNORED_FIELDS | {"use_output_norm"},  # the class has the norm in any case
    ),
    "retnet": _fla_family(
        "retnet",
        _read_retnet,
        {**COMMON_DEFAULTS, **LINEAR_ATTENTION_DEFAULTS, "expand_v": 2.0, "hidden_ratio": 2, "num_heads": 8},
        (IGNORED_FIELDS | UNREAD_BY_LINEAR | {"use_short_conv"}) - {"elementwise_affine"},
    ),
    "gla": _fla_family(
        "gla",
        _read_gla,
        {
            **COMMON_DEFAULTS,
            **LINEAR_ATTENTION_DEFAULTS,
            "expand_k": 0.5,
            "expand_v": 1.0,
            "num_heads": 4,
            "use_short_conv": False,
            "clamp_min": None,
        },
        (IGNORED_FIELDS | UNREAD_BY_LINEAR) - {"elementwise_affine"},
    ),
    "hgrn2": _fla_family(
        "hgrn2",
        _read_hgrn2,
        {
            **COMMON_DEFAULTS,
            "num_heads": None,
            "expand_ratio": 128,
            "use_lower_bound": True,
            "use_short_conv": False,
            "elementwise_affine": True,
        },
        (IGNORED_FIELDS | {"conv_size", "share_conv_kernel"}) - {"elementwise_affine"},
    ),
    "kda": _fla_family(
        "kda",
        _read_kda,
        {**COMMON_DEFAULTS, **KDA_REQUIRED, "conv_size": 4, "head_dim": 128, "num_heads": 16, "num_v_heads": None},
        IGNORED_FIELDS,
    ),
    "samba": _fla_family(
        "samba",
        _read_samba,
        {
            **COMMON_DEFAULTS,
            **STATE_SPACE_DEFAULTS,
            "hidden_size": 2304,
            "num_hidden_layers": 18,
            "hidden_act": "swish",
            "time_step_rank": "auto",
            "norm_eps": 1e-5,
        },
        IGNORED_FIELDS | TIME_STEP_FIELDS,
    ),
    "fla_mamba": _fla_family(
        "mamba",
        read_mamba,
        {
            "vocab_size": 32000,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            **STATE_SPACE_DEFAULTS,
            "hidden_act": "silu",
            "dt_rank": "auto",
            "norm_eps": 1e-5,
            "tie_word_embeddings": False,
        },
        IGNORED_FIELDS | TIME_STEP_FIELDS,
        {"layer_norm_epsilon": "norm_eps", "time_step_rank": "dt_rank"},
    ),
    "fla_mamba2": _fla_family(
        "mamba2",
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
        IGNORED_FIELDS | TIME_STEP_FIELDS,
        {"layer_norm_epsilon": "norm_eps"},
    ),
}
