"""Models of only state-space layers: mamba, falcon_mamba, mamba2.

transformers: models/mamba, models/falcon_mamba, models/mamba2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...absent_value import AbsentValue
from ...config import Config
from ...family import Family, ModuleNames, field_names
from ...field_writers import FieldWriter, FieldWriters
from ...parts import ACTIVATIONS, Table, decoder, layer_table, rmsnorm

if TYPE_CHECKING:
    from ....to_hf.config_values import ConfigValues

NO_COMPONENT: Table = {"type": "none"}


def step_rank(config: Config, field_name: str) -> int:
    """Returns the rank of Δ's projection; `auto` is hidden_size / 16, rounded up."""
    return -(-config.integer("hidden_size") // 16) if config.get(field_name) == "auto" else config.integer(field_name)


def _state_space_decoder(config: Config, token_mixer: Table) -> Table:
    norm = rmsnorm(config.number("layer_norm_epsilon"))
    return decoder(config, layer_table(token_mixer, NO_COMPONENT, norm), norm)


def mamba_mixer(config: Config) -> Table:
    """Returns the settings of a Mamba mixer, read from the fields that transformers' `MambaConfig` has."""
    expanded_width = config.integer("expand") * config.integer("hidden_size")
    return {
        "type": "mamba",
        "intermediate_size": config.optional_integer("intermediate_size") or expanded_width,
        "state_size": config.integer("state_size"),
        "time_step_rank": step_rank(config, "time_step_rank"),
        "conv_kernel": config.integer("conv_kernel"),
        "use_bias": config.flag("use_bias"),
        "use_conv_bias": config.flag("use_conv_bias"),
        "hidden_act": config.choice(ACTIVATIONS, "hidden_act"),
    }


def read_mamba(config: Config, **mixer_fields: Any) -> Table:
    """Reads Mamba. mixer_fields: additional fields of the mixer."""
    return _state_space_decoder(config, {**mamba_mixer(config), **mixer_fields})


def read_mamba2(config: Config) -> Table:
    """Reads Mamba-2, whose heads together are as wide as the expanded model."""
    head_count = config.integer("num_heads")
    head_dim = config.integer("head_dim")
    inner_size = config.integer("expand") * config.integer("hidden_size")
    if head_count * head_dim != inner_size:
        raise config.error("num_heads", head_count, f"expand × hidden_size / head_dim = {inner_size} / {head_dim}")
    token_mixer = {
        "type": "mamba2",
        "num_heads": head_count,
        "head_dim": head_dim,
        **config.integer_fields("state_size", "n_groups"),
    }
    bias_fields = {
        "use_bias": config.flag("use_bias"),
        "out_bias": config.flag("use_bias"),
        "use_conv_bias": config.flag("use_conv_bias"),
    }
    hidden_act = config.choice(ACTIVATIONS, "hidden_act")
    other_fields = {**config.integer_fields("conv_kernel", "chunk_size"), "hidden_act": hidden_act}
    norm = rmsnorm(config.number("layer_norm_epsilon"))
    return _state_space_decoder(config, {**token_mixer, **bias_fields, **other_fields, "norm": norm})


IGNORED_FIELDS = field_names("""
    time_step_rank time_step_scale time_step_min time_step_max time_step_init_scheme time_step_floor time_step_limit
    rescale_prenorm_residual residual_in_fp32 use_mambapy use_falcon_mambapy use_associative_scan rms_norm
    norm_before_gate fused_add_norm pad_vocab_size_multiple ssm_cfg d_inner d_model n_layer intermediate_size
    use_mamba_kernels mamba_dt_min mamba_dt_max mamba_dt_limit mamba_dt_init_floor num_logits_to_keep
    """)
"""Fields of initialisation, clamping of Δ and choice of kernel, and field names of other implementations, which the
classes ignore.
"""


def layer_interval(model_values: ConfigValues, layer_indices: list[int]) -> int:
    """Returns the distance between consecutive listed layers; the model's layer count if fewer than two are listed."""
    return layer_indices[1] - layer_indices[0] if len(layer_indices) > 1 else len(model_values.layers)


def full_attention_layers(model_values: ConfigValues) -> list[int]:
    """Returns the indices of the layers with full attention."""
    return [
        layer_index
        for layer_index, layer_kind in enumerate(model_values.layer_kinds())
        if layer_kind == "full_attention"
    ]


def inner_width(model_values: ConfigValues) -> int:
    """Returns the number of channels of the first state-space mixer."""
    token_mixer = model_values.part_of_type("mamba", "mamba2")
    inner_size: int = (
        token_mixer.intermediate_size if token_mixer.type == "mamba" else token_mixer.num_heads * token_mixer.head_dim
    )
    return inner_size


def expansion_factor(model_values: ConfigValues) -> int:
    """Returns the channels of the recurrence divided by the model's width."""
    expansion_ratio, remainder = divmod(inner_width(model_values), model_values.spec.hidden_size)
    if remainder or not expansion_ratio:
        raise AbsentValue
    return expansion_ratio


def state_space_field(field_name: str) -> FieldWriter:
    """Returns a function that gives a config field its value from a field of the first state-space mixer."""
    return lambda model_values: getattr(model_values.part_of_type("mamba", "mamba2"), field_name)


MAMBA_WRITERS: FieldWriters = {
    "mamba_d_state": state_space_field("state_size"),
    "mamba_d_conv": state_space_field("conv_kernel"),
    "mamba_expand": expansion_factor,
    "mamba_conv_bias": state_space_field("use_conv_bias"),
    "mamba_proj_bias": state_space_field("use_bias"),
}

MAMBA_2_WRITERS: FieldWriters = {
    **MAMBA_WRITERS,
    "mamba_n_heads": state_space_field("num_heads"),
    "mamba_d_head": state_space_field("head_dim"),
    "mamba_n_groups": state_space_field("n_groups"),
    "mamba_chunk_size": state_space_field("chunk_size"),
}

STANDALONE_WRITERS: FieldWriters = {
    "intermediate_size": inner_width,
    "expand": expansion_factor,
    "use_bias": state_space_field("use_bias"),
    "hidden_act": state_space_field("hidden_act"),
}


MAMBA_MODULES: ModuleNames = {"embed_tokens": "embeddings", "mamba_pre_norm": "norm", "norm": "norm_f"}

FAMILIES = {
    "mamba": Family(
        read_mamba,
        ignored_fields=IGNORED_FIELDS,
        field_writers=STANDALONE_WRITERS,
        modules=MAMBA_MODULES,
        dropout_fields={},
    ),
    "falcon_mamba": Family(
        lambda config: read_mamba(config, norm=rmsnorm(config.number("mixer_rms_eps"), weight=False)),
        ignored_fields=IGNORED_FIELDS,
        field_writers=STANDALONE_WRITERS,
        modules=MAMBA_MODULES,
        dropout_fields={},
    ),
    "mamba2": Family(
        read_mamba2,
        ignored_fields=IGNORED_FIELDS,
        field_writers={
            "expand": expansion_factor,
            "use_bias": state_space_field("use_bias"),
            "head_dim": state_space_field("head_dim"),
            "hidden_act": state_space_field("hidden_act"),
        },
        modules=MAMBA_MODULES,
        dropout_fields={},
    ),
}
