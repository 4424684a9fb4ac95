"""Zamba and Zamba 2: state-space layers, some with a preceding shared transformer block.

transformers: models/zamba, models/zamba2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...config import Config
from ...family import Family, ModuleNames, field_names
from ...field_writers import FieldWriters
from ...parts import (
    ACTIVATIONS,
    Table,
    attention,
    biases,
    decoder,
    glu,
    layer_pattern,
    layer_table,
    listed_kinds,
    rmsnorm,
    rope,
    stack_of_kinds,
)
from .hybrid import HYBRID_MODULES
from .mamba import IGNORED_FIELDS, MAMBA_WRITERS, NO_COMPONENT, state_space_field, step_rank

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

KIND_BY_LAYER_TYPE = {"mamba": "mamba", "linear_attention": "mamba", "hybrid": "hybrid"}
FIRST_LAYER_KINDS = ["mamba", "mamba", "hybrid"]
"""The first layers of Zamba if its config does not list the layers."""

ZAMBA2_LAYER_KINDS = [
    "mamba",
    *["mamba", "mamba", "mamba", "mamba", "mamba", "hybrid"] * 7,
    *["mamba"] * 4,
    "hybrid",
    *["mamba"] * 3,
    "hybrid",
    "mamba",
    "mamba",
]


def _hybrid_decoder(
    config: Config, token_mixer: Table, block: Table, layer_kinds: list[str], block_count: int, **model_fields: Any
) -> Table:
    """Returns a decoder whose hybrid layers use `block_count` shared blocks in rotation."""
    depth, norm = config.integer("num_hidden_layers"), rmsnorm(config.number("rms_norm_eps"))
    if len(layer_kinds) != depth:
        raise config.field_error("layers_block_type", f"{depth} times mamba or hybrid, as num_hidden_layers says")
    mixer_fields = layer_table(token_mixer, NO_COMPONENT, norm)
    hybrid_indices = [layer_index for layer_index, layer_kind in enumerate(layer_kinds) if layer_kind == "hybrid"]
    kind_by_layer = {
        layer_index: f"hybrid_{hybrid_index % block_count + 1}" if block_count > 1 else "hybrid"
        for hybrid_index, layer_index in enumerate(hybrid_indices)
    }
    layer_configs: dict[str, Table] = {"mamba": {"type": "block", **mixer_fields}}
    is_tied = config.flag("tie_word_embeddings")  # the classes tie the shared blocks and all other ties, or nothing
    hybrid_kinds = list(kind_by_layer.values())
    for layer_kind in dict.fromkeys(hybrid_kinds):
        adapter_fields = (
            {"idle_adapters": hybrid_kinds.count(layer_kind) - 1} if "adapter_rank" in block and not is_tied else {}
        )
        layer_configs[layer_kind] = {"type": "zamba", **mixer_fields, "transformer": {**block, **adapter_fields}}
    variant_names = [kind_by_layer.get(layer_index, "mamba") for layer_index in range(depth)]
    stack_fields = stack_of_kinds(layer_configs, variant_names)
    shared_kinds = list(dict.fromkeys(hybrid_kinds)) if is_tied else []
    return decoder(
        config,
        stack_fields.pop("block"),
        norm,
        stack={**stack_fields, **layer_pattern(variant_names), "shared_layers": shared_kinds},
        **model_fields,
    )


def _double_width_attention(config: Config, position_encoding: Table | None) -> Table:
    """Returns attention whose input width and head widths are twice the model's width."""
    double_width, head_count = 2 * config.integer("hidden_size"), config.integer("num_attention_heads")
    if (config.optional_integer("attention_hidden_size") or double_width) != double_width:
        raise config.field_error("attention_hidden_size", f"2 × hidden_size = {double_width}")
    head_dim = config.optional_integer("attention_head_dim") or double_width // head_count
    return attention(config, head_dim=head_dim, position=position_encoding)


def _read_zamba(config: Config) -> Table:
    head_count = config.integer("n_mamba_heads")
    has_bias = config.flag("mamba_proj_bias")
    channel_count = config.integer("mamba_expand") * config.integer("hidden_size")
    config.quotient("n_mamba_heads", channel_count, head_count)
    mamba_fields = {
        "intermediate_size": channel_count,
        "state_size": config.integer("mamba_d_state"),
        "time_step_rank": step_rank(config, "mamba_dt_rank"),
        "num_heads": head_count,
    }
    conv_kernel = config.integer("mamba_d_conv")
    convolution = {"conv_kernel": conv_kernel, "use_conv_bias": config.flag("mamba_conv_bias"), "use_bias": has_bias}
    hidden_act = config.choice(ACTIVATIONS, "hidden_mamba_act")
    token_mixer = {"type": "mamba", **mamba_fields, **convolution, "hidden_act": hidden_act}
    attention_period, attention_offset = config.integer("attn_layer_period"), config.count("attn_layer_offset")
    later_kinds = [
        "hybrid" if layer_index % attention_period == attention_offset else "mamba"
        for layer_index in range(config.integer("num_hidden_layers") - len(FIRST_LAYER_KINDS))
    ]
    layer_types = config.get("layers_block_type", "layer_types")
    if layer_types is None:
        layer_kinds = [*FIRST_LAYER_KINDS, *later_kinds]
    else:
        default_layer_kinds = [""] * config.integer("num_hidden_layers")
        layer_kinds = listed_kinds(config, "layers_block_type", KIND_BY_LAYER_TYPE, default_layer_kinds)
    block = {"attention": _double_width_attention(config, None), "feed_forward": glu(config)}
    return _hybrid_decoder(config, token_mixer, block, layer_kinds, 1)


def _read_zamba2(config: Config) -> Table:
    head_count = config.integer("n_mamba_heads")
    channel_count = config.integer("mamba_expand") * config.integer("hidden_size")
    has_bias = config.flag("add_bias_linear")
    head_dim = config.quotient("n_mamba_heads", channel_count, head_count)
    if config.has("mamba_headdim") and config.integer("mamba_headdim") != head_dim:
        raise config.field_error("mamba_headdim", f"{channel_count} / {head_count} = {head_dim}")
    state_size = config.integer("mamba_d_state")
    n_groups = config.integer("mamba_ngroups")
    mamba_fields = {"num_heads": head_count, "head_dim": head_dim, "state_size": state_size, "n_groups": n_groups}
    conv_kernel = config.integer("mamba_d_conv")
    other_fields = {"conv_kernel": conv_kernel, "chunk_size": config.integer("chunk_size"), "norm": rmsnorm(1e-5)}
    token_mixer = {"type": "mamba2", **mamba_fields, **other_fields, "use_bias": has_bias, "out_bias": has_bias}
    double_width, head_count = 2 * config.integer("hidden_size"), config.integer("num_attention_heads")
    double_head_dim = config.quotient("num_attention_heads", double_width, head_count)
    if (config.optional_integer("attention_head_dim") or double_head_dim) != double_head_dim:
        raise config.field_error("attention_head_dim", f"2 × hidden_size / num_attention_heads = {double_head_dim}")
    shared_attention = _double_width_attention(config, rope(config) if config.flag("use_mem_rope") else None)
    if config.has("hybrid_layer_ids"):
        hybrid_ids = config.integers("hybrid_layer_ids")
        if hybrid_ids != sorted(set(hybrid_ids)):  # the class finds a layer's adapters by the position of its id
            raise config.error("hybrid_layer_ids", hybrid_ids, "ascending numbers of layers")
    has_adapters = config.flag("use_shared_attention_adapter")
    if has_adapters and shared_attention.get("num_key_value_heads") is not None:
        raise config.field_error(
            "num_key_value_heads", "num_attention_heads: an attention adapter is as wide as the queries"
        )
    ffn = glu(config, ffn_width=config.optional_integer("intermediate_size") or 4 * config.integer("hidden_size"))
    ffn |= biases(has_bias, "gate_bias", "up_bias", "down_bias")
    block: Table = {
        "attention": shared_attention,
        "feed_forward": ffn,
        "adapter_rank": config.integer("adapter_rank"),
        "attention_adapters": has_adapters,
    }
    layer_types: Any = config.get("layers_block_type", "layer_types")
    layer_kinds = ZAMBA2_LAYER_KINDS
    if layer_types is not None:
        default_layer_kinds = [""] * config.integer("num_hidden_layers")
        layer_kinds = listed_kinds(config, "layers_block_type", KIND_BY_LAYER_TYPE, default_layer_kinds)
    length_fields = {"max_position_embeddings": 16384} if config.flag("use_long_context") else {}
    return _hybrid_decoder(config, token_mixer, block, layer_kinds, config.integer("num_mem_blocks"), **length_fields)


ZAMBA_IGNORED_FIELDS = IGNORED_FIELDS | field_names("""
    kv_channels num_query_groups use_long_context use_mem_eff_path sliding_window n_layer ffn_hidden_size num_layers
    state_size attn_layer_period attn_layer_offset adapter_rank expert_layer_period expert_layer_offset
    use_shared_mlp_adapter head_dim use_conv_bias mamba_dt_rank ft_lora use_shared_block_lora lora_rank vocab_pad
    gated_linear_unit hybrid_layer_ids state_rank use_shared_attention_lora
    """)


def _layer_kinds(model_values: ConfigValues) -> list[str]:
    """Returns the kinds of Zamba's layers: with or without a shared block before the state-space mixer."""
    return ["hybrid" if hasattr(layer, "transformer") else "mamba" for layer in model_values.layers]


def _shared_transformer(model_values: ConfigValues) -> Any:
    return model_values.first_value("transformer")


def _shared_blocks(model_values: ConfigValues) -> int:
    return max(
        1,
        len(
            {
                layer_kind
                for layer_kind in model_values.first_stack.layer_names()
                if hasattr(model_values.first_stack.layer(layer_kind), "transformer")
            }
        ),
    )


ZAMBA_WRITERS: FieldWriters = {
    **MAMBA_WRITERS,
    "layers_block_type": _layer_kinds,
    "n_mamba_heads": state_space_field("num_heads"),
    "intermediate_size": lambda s: _shared_transformer(s).feed_forward.intermediate_size,
    "hidden_act": lambda s: _shared_transformer(s).feed_forward.hidden_act,
}


ZAMBA_MODULES: ModuleNames = {
    **HYBRID_MODULES,
    "mixer": "mamba_decoder.mamba",
    "mixer_pre_norm": "mamba_decoder.input_layernorm",
}

FAMILIES = {
    "zamba": Family(
        _read_zamba,
        ignored_fields=ZAMBA_IGNORED_FIELDS,
        aliases={"layers_block_type": "layer_types", "attention_head_dim": "head_dim"},
        field_writers={
            **ZAMBA_WRITERS,
            "hidden_mamba_act": state_space_field("hidden_act"),
            "mamba_dt_rank": state_space_field("time_step_rank"),
        },
        has_older_aliases=True,
        modules={
            **ZAMBA_MODULES,
            "transformer": "shared_transf",
            "dt_proj": "dt_proj_weight + dt_proj_bias",
            "x_proj": "x_proj_weight",
        },
    ),
    "zamba2": Family(
        _read_zamba2,
        ignored_fields=ZAMBA_IGNORED_FIELDS,
        aliases={"layers_block_type": "layer_types", "attention_head_dim": "head_dim"},
        field_writers={
            **ZAMBA_WRITERS,
            "mamba_ngroups": state_space_field("n_groups"),
            "add_bias_linear": state_space_field("use_bias"),
            "num_mem_blocks": _shared_blocks,
            "use_mem_rope": lambda s: _shared_transformer(s).attention.position is not None,
            "use_shared_attention_adapter": lambda s: _shared_transformer(s).attention_adapters,
        },
        has_older_aliases=True,
        modules={
            **ZAMBA_MODULES,
            "transformer": "shared_transformer",
            "mlp.gate_proj": "gate_up_proj/2",
            "mlp.up_proj": "gate_up_proj/2",
            "mlp.adapters": "gate_up_proj_adapter_list",
            "adapters.down": "0",
            "adapters.up": "1",
            **{f"{x}_proj": f"{x}_proj + linear_{x}_adapter_list | {x}_proj" for x in "qkv"},
            **{f"{x}_proj.adapters": f".shared_transformer.self_attn.linear_{x}_adapter_list" for x in "qkv"},
        },
    ),
}
