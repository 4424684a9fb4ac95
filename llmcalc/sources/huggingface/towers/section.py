"""Common functions of encoder readers: a multimodal config's section, and fields of encoders and projectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..config import Config
from ..family import field_names
from ..parts import ACTIVATIONS, QKVO_BIASES, Table, biases, layer_table, mlp

TowerReader: TypeAlias = Callable[[Config, Config, int], Table]
"""A function of (the wrapper's config, the section's config, the text model's width) that returns encoders by name."""


@dataclass(frozen=True)
class TowerSection:
    """A section of a wrapper's config, such as `vision_config`.

    defaults_by_type: supported model types of the section → defaults of their configuration classes; the first is the
        wrapper's default.
    wrapper_defaults: defaults of the wrapper's fields that `read_tower` reads, beside those of its `Family`.
    default_section: the fields of a section that the config lacks; None if the class then builds no encoder.
    ignored_fields: fields of the section that change no count.
    aliases: usual name of a field of the section → another name for it, which its class reads too.
    is_flat: whether the wrapper has no such section, because its code or fields of its own state the sizes.
    """

    read_tower: TowerReader
    defaults_by_type: Mapping[str, Table]
    wrapper_defaults: Table = field(default_factory=dict)
    default_section: Table | None = field(default_factory=dict)
    ignored_fields: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)
    is_flat: bool = False


def vision_section(
    read_tower: TowerReader, defaults_by_type: Mapping[str, Table], *section_fields: Any, **named_fields: Any
) -> dict[str, TowerSection]:
    """Returns the sections of a wrapper's config that has only `vision_config`. Arguments: fields of `TowerSection`."""
    return {"vision_config": TowerSection(read_tower, defaults_by_type, *section_fields, **named_fields)}


def vision_transformer(
    config: Config,
    block: Table,
    depth_field: str = "num_hidden_layers",
    stack: Table | None = None,
    patch_fields: Table | None = None,
    **encoder_fields: Any,
) -> Table:
    """Returns a vision encoder of patches and layers. depth_field: the config field of the number of layers."""
    return {
        "type": "vision",
        "hidden_size": config.integer("hidden_size"),
        "patches": {"patch_size": config.integer("patch_size"), **(patch_fields or {})},
        "stack": {"num_hidden_layers": config.integer(depth_field), "block": block, **(stack or {})},
        **encoder_fields,
    }


ROTARY_POSITION: Table = {"position": {"type": "rope"}}


def self_attention(
    config: Config, heads_field: str = "num_attention_heads", width_field: str = "hidden_size", **attention_fields: Any
) -> Table:
    """Returns self-attention whose heads divide a width evenly. heads_field, width_field: config fields of both."""
    head_count = config.integer(heads_field)
    head_dim = config.quotient(heads_field, config.integer(width_field), head_count)
    return {"num_attention_heads": head_count, "head_dim": head_dim, **attention_fields}


def biased_layer(
    config: Config,
    norm: Table,
    heads_field: str = "num_attention_heads",
    ffn: Table | None = None,
    **attention_fields: Any,
) -> Table:
    """Returns a layer of the original vision transformer: pre-norm, biases everywhere, a non-gated FFN."""
    attention = self_attention(config, heads_field, **biases(True, *QKVO_BIASES), **attention_fields)
    if ffn is None:
        ffn = mlp(config.integer("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act"))
    return layer_table(attention, ffn, norm)


LinearLayer: TypeAlias = tuple[int, bool, str]
"""A linear layer of a projector: its output width, whether it has a bias, the activation after it."""


def two_linear_layers(
    output_width: int, activation: str = "gelu", bias: bool = True, inner_width: int | None = None
) -> tuple[LinearLayer, LinearLayer]:
    """Returns two linear layers with an activation. inner_width: default `output_width`, the output's width."""
    return (inner_width or output_width, bias, activation), (output_width, bias, "identity")


def projector(input_width: int, *linear_layers: LinearLayer, **projector_fields: Any) -> Table:
    """Returns a projector of linear layers. input_width: the input's width."""
    layer_tables = [
        {"size": output_width, "bias": bias, "hidden_act": activation}
        for output_width, bias, activation in linear_layers
    ]
    return {"type": "projector", "input_size": input_width, "maps": layer_tables, **projector_fields}


def two_layer_projector(root_config: Config, input_width: int, output_width: int, **projector_fields: Any) -> Table:
    """Returns LLaVA 1.5's projector: a linear layer, an activation, and a second linear layer.

    Both linear layers have the text's width.
    """
    activation = root_config.choice(ACTIVATIONS, "projector_hidden_act")
    bias = root_config.flag("multimodal_projector_bias")
    return projector(input_width, *two_linear_layers(output_width, activation, bias), **projector_fields)


MAX_LAYERS_READ = 100
"""The most layers of an encoder whose outputs a projector reads."""


def layers_of_features(root_config: Config) -> int:
    """Returns how many encoder layers' outputs a projector concatenates."""
    layers = root_config.get("vision_feature_layer")
    if type(layers) is int:
        return 1
    if not isinstance(layers, list | tuple) or {*map(type, layers)} != {int} or len(layers) > MAX_LAYERS_READ:
        raise root_config.error("vision_feature_layer", layers, f"a layer, or a list of at most {MAX_LAYERS_READ}")
    return len(layers)


def require_one_layer(root_config: Config) -> None:
    """Raises `InputError` if the projector reads the outputs of several encoder layers."""
    if type(root_config.get("vision_feature_layer")) is not int:
        raise root_config.field_error("vision_feature_layer", "one layer")


def patches_per_side(config: Config) -> int:
    """Returns the number of patches along one side of an image of the configured size."""
    image_size, patch_size = config.integer("image_size"), config.integer("patch_size")
    if image_size < patch_size:
        raise config.error("image_size", image_size, f"{patch_size} or more, which is patch_size")
    return image_size // patch_size


def merged_square_side(config: Config, field_name: str) -> int:
    """Returns the side, in patches, of the square blocks merged to one patch: 1 / the field's value.

    Raises `InputError` if that is no whole number.
    """
    shuffle_ratio = config.number(field_name)
    merge_size = round(1 / shuffle_ratio) if shuffle_ratio > 0 else 0
    if merge_size < 1 or merge_size * shuffle_ratio != 1:
        raise config.error(field_name, shuffle_ratio, "1 / a whole number")
    return merge_size


IGNORED_FIELDS = field_names("""
    attention_bias deepstack_visual_indexes default_output_length global_head_dim head_dim image_size initializer_range
    max_position_embeddings multi_modal_projector_bias num_image_tokens num_positions pos_emb_time projection_dim
    projector_dropout projector_hidden_act vision_feature_layer vision_feature_select_strategy vocab_size
    """)
"""Fields of vision and audio encoders that change no count; `attention_bias` and `head_dim` are read where a class uses
them.
"""
