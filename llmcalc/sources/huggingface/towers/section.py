"""Reads one section of a wrapper's config (`vision_config`, `audio_config`), and builds tables that readers share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from ..config import Config
from ..parts import ACTIVATIONS, QKVO, Table, biases, mlp

Reader: TypeAlias = Callable[[Config, Config, int], Table]
"""A function of (the wrapper's config, the section's config, the text model's width) that returns encoders by name."""


@dataclass(frozen=True)
class Section:
    """A section of a wrapper's config.

    kinds: supported model types of the section → defaults of their configuration classes; the first is the wrapper's
        default.
    above: defaults of the wrapper's fields that `read` reads.
    built: the encoder that the wrapper's class builds without a section; None if it builds none.
    ignored: fields of the section that change no count.
    aliases: usual name of a field of the section → another name for it, which its class reads too.
    """

    read: Reader
    kinds: Mapping[str, Table]
    above: Table = field(default_factory=dict)
    built: Table | None = field(default_factory=dict)
    ignored: frozenset[str] = frozenset()
    aliases: Mapping[str, str] = field(default_factory=dict)


def vit(
    config: Config,
    block: Table,
    depth: str = "num_hidden_layers",
    stack: Table | None = None,
    patches: Table | None = None,
    **fields: Any,
) -> Table:
    return {
        "type": "vision",
        "hidden_size": config.size("hidden_size"),
        "patches": {"patch_size": config.size("patch_size"), **(patches or {})},
        "stack": {"num_hidden_layers": config.size(depth), "block": block, **(stack or {})},
        **fields,
    }


def biased(
    config: Config, norm: Table, heads: str = "num_attention_heads", network: Table | None = None, **fields: Any
) -> Table:
    """Returns a layer of the original vision transformer: pre-norm, biases everywhere, a non-gated FFN."""
    width, head_count = config.size("hidden_size"), config.size(heads)
    mixer = {
        "num_attention_heads": head_count,
        "head_dim": config.divided(heads, width, head_count),
        **biases(True, *QKVO),
        **fields,
    }
    network = (
        mlp(config.size("intermediate_size"), config.choice(ACTIVATIONS, "hidden_act")) if network is None else network
    )
    return {"attention": mixer, "feed_forward": network, "norm": norm, "norm_placement": "pre"}


def projector(width: int, *maps: tuple[int, bool, str], **fields: Any) -> Table:
    """Returns a projector. width: its input width. maps: (size, bias, activation) of each linear layer."""
    linear_layers = [{"size": output_width, "bias": bias, "hidden_act": act} for output_width, bias, act in maps]
    return {"type": "projector", "input_size": width, "maps": linear_layers, **fields}


def two_layer_projector(
    wrapper: Config, width: int, output_width: int, bias: str = "multimodal_projector_bias", **fields: Any
) -> Table:
    """Returns LLaVA 1.5's projector: a linear layer, an activation, and a second linear layer.

    Both linear layers have the text's width.
    """
    has_bias, act = wrapper.flag(bias), wrapper.choice(ACTIVATIONS, "projector_hidden_act")
    return projector(width, (output_width, has_bias, act), (output_width, has_bias, "identity"), **fields)


def require_one_layer(wrapper: Config) -> None:
    """Raises `InputError` if the projector reads the outputs of several encoder layers."""
    if type(wrapper.get("vision_feature_layer")) is not int:
        raise wrapper.wrong("vision_feature_layer", wrapper.get("vision_feature_layer"), "one layer")


def side(config: Config) -> int:
    """Returns the number of patches along a side of an image of the configured size."""
    image, patch = config.size("image_size"), config.size("patch_size")
    if image < patch:
        raise config.wrong("image_size", image, f"{patch} or more, which is patch_size")
    return image // patch


def merged_side(ratio: float) -> int:
    """Returns the number of patches per side that are merged to reduce patches by `ratio`; 0 if it is no integer."""
    merge = round(1 / ratio) if ratio > 0 else 0
    return merge if merge >= 1 and merge * ratio == 1 else 0


IGNORED = frozenset(
    """
    attention_bias deepstack_visual_indexes default_output_length global_head_dim head_dim image_size initializer_range
    max_position_embeddings multi_modal_projector_bias num_image_tokens num_positions pos_emb_time projection_dim
    projector_dropout projector_hidden_act vision_feature_layer vision_feature_select_strategy vocab_size
    """.split()  # noqa: SIM905
)
"""Fields of vision and audio encoders that change no count; `attention_bias` and `head_dim` are read where a class uses
them.
"""
