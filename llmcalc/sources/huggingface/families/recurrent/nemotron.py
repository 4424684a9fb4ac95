"""Nemotron: a Transformer with squared ReLU (nemotron), and hybrids of Mamba-2 and attention (nemotron_h).

A layer of nemotron_h is a single mixer, FFN or mixture of experts.

transformers: models/nemotron, models/nemotron_h.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...config import Config
from ...family import Family, field_names
from ...field_writers import PARTIAL_ROTARY_WRITER
from ...parts import (
    ACTIVATIONS,
    Table,
    add_mtp_modules,
    attention,
    attention_biases,
    decoder,
    float32_rmsnorm,
    layer_table,
    layernorm,
    mlp,
    moe,
    note_uncounted_mtp,
    rmsnorm,
    rope,
    stack_of_kinds,
)
from .hybrid import hybrid_attention
from .mamba import IGNORED_FIELDS, MAMBA_MODULES, NO_COMPONENT, state_space_field

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

KIND_BY_LAYER_NAME = {
    "M": "mamba",
    "mamba": "mamba",
    "linear_attention": "mamba",
    "*": "attention",
    "attention": "attention",
    "full_attention": "attention",
    "-": "mlp",
    "mlp": "mlp",
    "E": "moe",
    "moe": "moe",
}
"""Letter of a layer in `hybrid_override_pattern` → its names in lists, old and new."""


def _read_nemotron(config: Config) -> Table:
    norm = layernorm(config.number("norm_eps"), unit_offset=True)
    attention_table = attention(config, position=rope(config, 0.5), **attention_biases(config))
    ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"), config.flag("mlp_bias"))
    return decoder(config, layer_table(attention_table, ffn, norm), norm)


def layer_kinds(config: Config) -> list[str]:
    """Returns each layer's kind, from a list or from a text with a letter per layer; their number is the depth."""
    is_listed = config.has("layer_types") or config.has("layers_block_type")
    has_default_list = config.defaults.get("layers_block_type") and not config.has("hybrid_override_pattern")
    field_name = "layer_types" if is_listed or has_default_list else "hybrid_override_pattern"
    layer_pattern_text: Any = config.get(field_name)
    layer_letters = list(layer_pattern_text) if isinstance(layer_pattern_text, str) else config.texts(field_name)
    parsed_kinds = [KIND_BY_LAYER_NAME.get(letter, "") for letter in layer_letters]
    if not parsed_kinds or "" in parsed_kinds:
        raise config.error(
            field_name,
            layer_pattern_text,
            "a layer for each of M, *, - and E, or a list of mamba, attention, mlp and moe",
        )
    return parsed_kinds


def _mamba(config: Config) -> Table:
    head_count, has_bias = config.integer("mamba_num_heads"), config.flag("use_bias")
    mamba_fields = {
        "num_heads": head_count,
        "head_dim": config.integer("mamba_head_dim"),
        "state_size": config.integer("ssm_state_size"),
        "n_groups": config.integer("mamba_n_groups", "n_groups"),
    }
    conv_kernel = config.integer("mamba_d_conv", "conv_kernel")
    convolution = {"conv_kernel": conv_kernel, "use_conv_bias": config.flag("mamba_conv_bias", "use_conv_bias")}
    chunk_size = config.integer("mamba_chunk_size", "chunk_size")
    other_fields = {"chunk_size": chunk_size, "hidden_act": config.choice(ACTIVATIONS, "mamba_hidden_act")}
    return {
        "type": "mamba2",
        **mamba_fields,
        **convolution,
        **other_fields,
        "use_bias": has_bias,
        "out_bias": has_bias,
        "norm": rmsnorm(config.number("layer_norm_epsilon")),
    }


def _moe(config: Config, activation: str) -> Table:
    has_bias, latent_width = config.flag("mlp_bias"), config.optional_integer("moe_latent_size")
    expert = mlp(config.integer("moe_intermediate_size"), activation, bias=False)
    shared_expert = mlp(config.integer("moe_shared_expert_intermediate_size"), activation, has_bias)
    latent_field = {} if latent_width is None else {"latent": {"moe_latent_size": latent_width, "bias": has_bias}}
    router_fields = {"router": {"scoring_func": "sigmoid", "score_correction": "buffer"}}
    n_routed_experts = config.integer("n_routed_experts")
    num_experts_per_tok = config.integer("num_experts_per_tok")
    return moe(n_routed_experts, num_experts_per_tok, expert, shared_expert, **latent_field, **router_fields)


def single_sublayer_model(config: Config, layers: list[tuple[str, Config]]) -> Table:
    """Returns a model whose layers have a mixer or a network, not both. layers: each layer's kind and fields."""
    norm = float32_rmsnorm(config.number("layer_norm_epsilon"))
    activation = config.choice(ACTIVATIONS, "mlp_hidden_act")
    layer_builders: dict[str, Callable[[Config], Table]] = {
        "mamba": lambda layer_config: {"attention": _mamba(layer_config), "feed_forward": NO_COMPONENT},
        "attention": lambda layer_config: {
            "attention": hybrid_attention(layer_config, position=None),
            "feed_forward": NO_COMPONENT,
        },
        "mlp": lambda layer_config: {
            "attention": NO_COMPONENT,
            "feed_forward": {
                "type": "mlp",
                **mlp(layer_config.integer("intermediate_size"), activation, layer_config.flag("mlp_bias")),
            },
        },
        "moe": lambda layer_config: {"attention": NO_COMPONENT, "feed_forward": _moe(layer_config, activation)},
    }
    layer_table_by_kind: dict[str, Table] = {}
    layer_variant_names: list[str] = []
    for layer_kind, layer_config in layers:
        layer_fields = {**layer_builders[layer_kind](layer_config), "norm": norm, "norm_placement": "pre"}
        variant_names = [name for name in layer_table_by_kind if name.partition("_")[0] == layer_kind]
        new_variant_name = f"{layer_kind}_{len(variant_names)}" if variant_names else layer_kind
        variant_name = next(
            (variant_name for variant_name in variant_names if layer_table_by_kind[variant_name] == layer_fields),
            new_variant_name,
        )
        layer_table_by_kind[variant_name] = layer_fields
        layer_variant_names.append(variant_name)
    stack_fields = stack_of_kinds(layer_table_by_kind, layer_variant_names)
    stack_fields["num_hidden_layers"] = len(layer_variant_names)
    mtp_fields = _mtp_fields(config, stack_fields, norm, layer_builders)
    return decoder(config, stack_fields.pop("block"), norm, stack=stack_fields, tie_word_embeddings=False, **mtp_fields)


def _mtp_fields(
    config: Config, stack_fields: Table, norm: Table, layer_builders: dict[str, Callable[[Config], Table]]
) -> Table:
    """Returns the MTP modules: attention and experts, each after a norm, in one layer.

    Source: vLLM, models/nemotron_h_mtp.py. Modules with other layers are not counted.
    """
    if mtp_layer_kinds(config) != ["attention", "moe"]:
        note_uncounted_mtp(config)
        return {}
    layer_fields = {**layer_builders["moe"](config), "attention": layer_builders["attention"](config)["attention"]}
    return add_mtp_modules(config, stack_fields, "mtp", {**layer_fields, "norm": norm, "norm_placement": "pre"}, norm)


def mtp_layer_kinds(config: Config) -> list[str]:
    """Returns the layer kinds of an MTP module; an empty list if the config states none."""
    for field_name in ("mtp_layers_block_type", "mtp_hybrid_override_pattern"):
        if config.has(field_name):
            layer_text: Any = config.get(field_name)
            letters = layer_text if isinstance(layer_text, str) else config.texts(field_name)
            return [KIND_BY_LAYER_NAME.get(letter, "") for letter in letters]
    return []


def _layer_type_names(model_values: ConfigValues) -> list[str]:
    """Returns each layer's name in `layers_block_type`, where every sublayer counts as a layer."""
    kind_by_mixer = {"mamba2": "mamba", "attention": "attention"}
    return [
        kind_by_mixer.get(layer.attention.type) or {"mlp": "mlp", "moe": "moe"}[layer.feed_forward.type]
        for layer in model_values.layers
    ]


FAMILIES = {
    "nemotron": Family(
        _read_nemotron,
        ignored_fields=field_names(
            "kv_channels layernorm_type rope_percent partial_rotary_factor rotary_percent rope_percentage"
        ),
        field_writers=PARTIAL_ROTARY_WRITER,
    ),
    "nemotron_h": Family(
        lambda config: single_sublayer_model(config, [(layer_kind, config) for layer_kind in layer_kinds(config)]),
        {"num_hidden_layers": 4, "hybrid_override_pattern": "ME*-"},
        IGNORED_FIELDS
        | {"attention_head_dim", "mamba_expand", "mamba_d_state", "mtp_hybrid_override_pattern", "num_hidden_layers"}
        | {"num_local_experts"},
        aliases={"layer_types": "layers_block_type", "n_routed_experts": "num_local_experts"},
        field_writers={
            "layers_block_type": _layer_type_names,
            "mtp_layers_block_type": lambda s: None if s.spec.mtp is None else ["attention", "moe"],
            "use_bias": state_space_field("use_bias"),
            "mamba_num_heads": state_space_field("num_heads"),
            "mamba_head_dim": state_space_field("head_dim"),
            "ssm_state_size": state_space_field("state_size"),
            "mamba_hidden_act": state_space_field("hidden_act"),
            "mlp_hidden_act": "hidden_act",
        },
        has_older_aliases=True,
        modules={
            **MAMBA_MODULES,
            "mlp": "mixer",
            "self_attn": "mixer",
            "mlp_pre_norm": "norm",
            "self_attn_pre_norm": "norm",
            "latent_in": "fc1_latent_proj",
            "latent_out": "fc2_latent_proj",
        },
        earlier_names={"model": "backbone"},
    ),
}
