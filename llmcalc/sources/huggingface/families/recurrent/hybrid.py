"""Hybrids of state-space and attention layers, each with an FFN: jamba, bamba, granitemoehybrid, falcon_h1.

transformers: models/jamba, models/bamba, models/granitemoehybrid, models/falcon_h1.
"""

from __future__ import annotations

from typing import Any

from ...config import Config
from ...family import Family, ModuleNames, field_names
from ...field_writers import PARTIAL_ROTARY_WRITER
from ...parts import (
    ACTIVATIONS,
    Table,
    attention,
    attention_biases,
    decoder,
    glu,
    listed_kinds,
    moe,
    rmsnorm,
    rope,
    stack_of_kinds,
)
from ..llama.granite import GRANITE_EARLIER_NAMES
from .mamba import (
    IGNORED_FIELDS,
    MAMBA_2_WRITERS,
    MAMBA_WRITERS,
    full_attention_layers,
    inner_width,
    layer_interval,
    state_space_field,
    step_rank,
)

MIXER_BY_LAYER_TYPE = {
    "attention": "attention",
    "full_attention": "attention",
    "mamba": "mamba",
    "linear_attention": "mamba",
}
"""Name of a layer's mixer in configs, old and new → its name here."""


def hybrid_attention(config: Config, **attention_fields: Any) -> Table:
    """Returns grouped-query attention for a hybrid of state-space and attention layers."""
    return {"type": "attention", **attention(config, **attention_fields)}


def mixed_decoder(config: Config, layer_configs: dict[str, Table], layer_kinds: list[str]) -> Table:
    """Returns a decoder with several kinds of layers. Each kind is a layer's table without its norm."""
    norm = rmsnorm(config.number("rms_norm_eps"))
    stack_fields = stack_of_kinds(
        {layer_kind: {**table, "norm": norm, "norm_placement": "pre"} for layer_kind, table in layer_configs.items()},
        layer_kinds,
    )
    return decoder(config, stack_fields.pop("block"), norm, stack=stack_fields)


def dense_ffn(config: Config, bias: bool = False, ffn_width: int | None = None) -> Table:
    """Returns a gated FFN for a model that may also have experts."""
    return {"type": "mlp", **glu(config, bias, ffn_width)}


def mamba2(config: Config, channel_count: int, **mixer_fields: Any) -> Table:
    """Returns a Mamba-2 mixer of `channel_count` channels, from the config fields of Bamba and later models."""
    head_count, norm = config.integer("mamba_n_heads"), rmsnorm(config.number("rms_norm_eps"))
    head_dim = config.quotient("mamba_n_heads", channel_count, head_count)
    if config.get("mamba_d_head") not in ("auto", head_dim):
        raise config.field_error("mamba_d_head", f"auto, or {channel_count} / {head_count} = {head_dim}")
    state_size = config.integer("mamba_d_state")
    n_groups = config.integer("mamba_n_groups")
    mamba_fields = {"num_heads": head_count, "head_dim": head_dim, "state_size": state_size, "n_groups": n_groups}
    convolution = {
        "conv_kernel": config.integer("mamba_d_conv"),
        "use_conv_bias": config.flag("mamba_conv_bias"),
        "chunk_size": config.integer("mamba_chunk_size"),
    }
    has_bias, activation = config.flag("mamba_proj_bias"), config.choice(ACTIVATIONS, "hidden_act")
    return {
        "type": "mamba2",
        **mamba_fields,
        **convolution,
        "use_bias": has_bias,
        "out_bias": has_bias,
        "hidden_act": activation,
        "norm": norm,
        **mixer_fields,
    }


def _expanded_width(config: Config) -> int:
    return config.integer("mamba_expand") * config.integer("hidden_size")


def _periodic_kinds(config: Config, field_prefix: str, layer_kind: str, other_kind: str) -> list[str]:
    """Returns each layer's kind: every n-th layer from a first one on is `layer_kind`, all others `other_kind`."""
    period, first_layer = config.integer(f"{field_prefix}_layer_period"), config.count(f"{field_prefix}_layer_offset")
    if first_layer >= period:
        raise config.error(
            f"{field_prefix}_layer_offset", first_layer, f"less than {field_prefix}_layer_period = {period}"
        )
    return [
        layer_kind if layer_index % period == first_layer else other_kind
        for layer_index in range(config.integer("num_hidden_layers"))
    ]


def _read_jamba(config: Config) -> Table:
    norm, has_bias = rmsnorm(config.number("rms_norm_eps")), config.flag("mamba_proj_bias")
    mamba_fields = {
        "intermediate_size": _expanded_width(config),
        "state_size": config.integer("mamba_d_state"),
        "time_step_rank": step_rank(config, "mamba_dt_rank"),
    }
    conv_kernel = config.integer("mamba_d_conv")
    convolution = {"conv_kernel": conv_kernel, "use_conv_bias": config.flag("mamba_conv_bias"), "use_bias": has_bias}
    hidden_act = config.choice(ACTIVATIONS, "hidden_act")
    mamba = {"type": "mamba", **mamba_fields, **convolution, "hidden_act": hidden_act, "norm": norm}
    expert_count, top_k = config.integer("num_experts"), config.integer("num_experts_per_tok")
    ffns_by_kind = {
        "dense": dense_ffn(config),
        "moe": moe(expert_count, top_k, glu(config)) if expert_count > 1 else dense_ffn(config),
    }
    mixers = {"attention": hybrid_attention(config, position=None), "mamba": mamba}
    layer_configs = {
        f"{mixer_kind}_{ffn_kind}": {"attention": token_mixer, "feed_forward": ffn}
        for mixer_kind, token_mixer in mixers.items()
        for ffn_kind, ffn in ffns_by_kind.items()
    }
    mixer_and_ffn_kinds = zip(
        _periodic_kinds(config, "attn", "attention", "mamba"),
        _periodic_kinds(config, "expert", "moe" if expert_count > 1 else "dense", "dense"),
        strict=True,
    )
    layer_kinds = [f"{mixer_kind}_{ffn_kind}" for mixer_kind, ffn_kind in mixer_and_ffn_kinds]
    return mixed_decoder(config, layer_configs, layer_kinds)


def _read_bamba(config: Config) -> Table:
    ffn = dense_ffn(config, config.flag("mlp_bias"))
    attention_layers = set() if config.get("attn_layer_indices") is None else set(config.integers("attn_layer_indices"))
    mixers = {
        "attention": hybrid_attention(config, position=rope(config, 0.5), **attention_biases(config)),
        "mamba": mamba2(config, _expanded_width(config)),
    }
    layer_kinds = [
        "attention" if layer_index in attention_layers else "mamba"
        for layer_index in range(config.integer("num_hidden_layers"))
    ]
    return _decoder_of_mixers(config, mixers, ffn, layer_kinds)


def _decoder_of_mixers(config: Config, mixers: Table, ffn: Table, layer_kinds: list[str]) -> Table:
    """Returns a decoder whose layers have one kind of FFN and mixers of several kinds (`mixers`)."""
    layers_by_kind = {
        layer_kind: {"attention": token_mixer, "feed_forward": ffn} for layer_kind, token_mixer in mixers.items()
    }
    return mixed_decoder(config, layers_by_kind, layer_kinds)


def _read_granitemoehybrid(config: Config) -> Table:
    expert_count = config.count("num_local_experts")
    shared_ffn = glu(config, ffn_width=config.integer("shared_intermediate_size"))
    ffn = shared_ffn
    if expert_count:
        ffn = moe(expert_count, config.integer("num_experts_per_tok"), glu(config), shared_ffn)
    config.require("position_embedding_type", None, "nope", "rope")
    position_fields: Table = {} if config.get("position_embedding_type") == "rope" else {"position": None}
    mamba = mamba2(config, _expanded_width(config))
    mixers = {"attention": hybrid_attention(config, **position_fields, **attention_biases(config)), "mamba": mamba}
    default_layer_kinds = ["mamba"] * config.integer("num_hidden_layers")
    layer_kinds = listed_kinds(config, "layer_types", MIXER_BY_LAYER_TYPE, default_layer_kinds)
    return _decoder_of_mixers(config, mixers, ffn, layer_kinds)


def _read_falcon_h1(config: Config) -> Table:
    expanded_width = _expanded_width(config)
    channel_count = config.optional_integer("mamba_d_ssm") or expanded_width
    norm = {} if config.flag("mamba_rms_norm") else {"norm": None}
    out_bias = config.flag("projectors_bias")
    token_mixer = mamba2(
        config, channel_count, out_bias=out_bias, norm_before_gate=config.flag("mamba_norm_before_gate"), **norm
    )
    mixer_norm = rmsnorm(config.number("rms_norm_eps"))
    layer_parts = {
        "attention": attention(config, **attention_biases(config)),
        "state_space": token_mixer,
        "feed_forward": glu(config, config.flag("mlp_bias")),
    }
    return decoder(config, {"type": "hybrid", **layer_parts, "norm": mixer_norm, "norm_placement": "pre"}, mixer_norm)


MULTIPLIER_FIELDS = field_names("""
    embedding_multiplier logits_scaling residual_multiplier attention_multiplier lm_head_multiplier mlp_multipliers
    key_multiplier attention_out_multiplier attention_in_multiplier ssm_multipliers ssm_in_multiplier ssm_out_multiplier
    z_loss_coefficient mamba_use_mlp attn_layer_indices attn_rotary_emb normalization_function mamba_dt_rank
    mlp_expansion_factor num_local_experts num_experts_per_tok partial_rotary_factor
    """)


def _first_layer_index(layer_indices: list[int]) -> int:
    return layer_indices[0] if layer_indices else 0


HYBRID_MODULES: ModuleNames = {"mlp": "feed_forward", "mlp_pre_norm": "pre_ff_layernorm", "norm": "final_layernorm"}

FAMILIES = {
    "jamba": Family(
        _read_jamba,
        {"head_dim": None},
        IGNORED_FIELDS
        | {"sliding_window", "calc_logits_for_entire_prompt", "mamba_inner_layernorms", "n_ctx", "n_ctx_tokens"},
        aliases={"num_experts": "num_local_experts"},
        field_writers={
            **MAMBA_WRITERS,
            "mamba_dt_rank": state_space_field("time_step_rank"),
            "attn_layer_period": lambda s: layer_interval(s, full_attention_layers(s)),
            "attn_layer_offset": lambda s: _first_layer_index(full_attention_layers(s)),
            "expert_layer_period": lambda s: layer_interval(s, s.expert_layers()),
            "expert_layer_offset": lambda s: _first_layer_index(s.expert_layers()),
            "num_experts": lambda s: max(1, s.usual_value("num_experts")),
        },
        has_older_aliases=True,
        modules={**HYBRID_MODULES, "b_norm": "b_layernorm", "c_norm": "c_layernorm", "dt_norm": "dt_layernorm"},
    ),
    "bamba": Family(
        _read_bamba,
        {"head_dim": None},
        IGNORED_FIELDS | MULTIPLIER_FIELDS,
        field_writers={
            **MAMBA_2_WRITERS,
            "attn_layer_indices": full_attention_layers,
            **PARTIAL_ROTARY_WRITER,
        },
        modules=HYBRID_MODULES,
    ),
    "granitemoehybrid": Family(
        _read_granitemoehybrid,
        {"head_dim": None},
        IGNORED_FIELDS | MULTIPLIER_FIELDS,
        aliases={"layer_types": "layers_block_type"},
        field_writers={
            **MAMBA_2_WRITERS,
            "layer_types": lambda s: s.layer_kinds(full_attention="attention"),
            "position_embedding_type": lambda s: "rope" if any(s.positions) else None,
            "shared_intermediate_size": lambda s: (
                s.shared_expert.intermediate_size if s.expert_layers() else s.network.intermediate_size
            ),
        },
        has_older_aliases=True,
        earlier_names=GRANITE_EARLIER_NAMES,
    ),
    "falcon_h1": Family(
        _read_falcon_h1,
        {"head_dim": None},
        IGNORED_FIELDS | MULTIPLIER_FIELDS,
        field_writers={
            **MAMBA_2_WRITERS,
            "mamba_d_ssm": inner_width,
            "mamba_rms_norm": lambda s: s.part_of_type("mamba2").norm is not None,
            "mamba_norm_before_gate": state_space_field("norm_before_gate"),
            "projectors_bias": state_space_field("out_bias"),
        },
        modules={**HYBRID_MODULES, "state_space": "mamba"},
    ),
}
