"""Configs of multimodal wrappers: a text model's config inside, and those of its towers beside it.

The way back from `sources.huggingface.towers`, for the wrappers in `WRAPPERS`; a spec with towers that are no such
wrapper's is written by none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any, TypeAlias

from ...components.towers import Tower
from ...model import ModelSpec
from .classes import wrapper_names
from .fields import ACTIVATIONS

Table: TypeAlias = dict[str, Any]
Towers: TypeAlias = Mapping[str, Any]
"""By the names that the wrapper's class has for them."""


def wrapped(config: Table, spec: ModelSpec) -> Table:
    """The config of the wrapper whose towers the spec has, with `config` as its text model's;
    `config` itself where it has none or another's.
    """
    kind, beside = WRAPPERS.get(config["model_type"], ("", None))
    if beside is None or not spec.towers:
        return config
    try:
        sections = beside(spec.towers)
    except (
        LookupError,
        AttributeError,
        TypeError,
    ):  # a tower, or a part of one, that this wrapper's have and the spec's have not
        return config
    bare = config["architectures"][0].endswith("Model")
    text = {k: v for k, v in config.items() if k != "architectures"}
    about = {"model_type": kind, "architectures": wrapper_names(kind, bare)[:1]}
    return {**about, "tie_word_embeddings": spec.tie_word_embeddings, "text_config": text, **sections}


def _name_of(act: str) -> str:
    return ACTIVATIONS.get(act, act)


def _layers(tower: Any) -> Table:
    """What any of these encoders of images is told of its layers."""
    block = tower.stack.block
    sizes = {
        "hidden_size": tower.hidden_size,
        "intermediate_size": block.feed_forward.intermediate_size,
        "num_hidden_layers": tower.stack.num_hidden_layers,
    }
    return {**sizes, "num_attention_heads": block.attention.num_attention_heads, "patch_size": tower.patches.patch_size}


def _side(tower: Any) -> int:
    """Patches along one side of the image that the table of positions is for."""
    return isqrt(tower.positions.rows)


def _siglip(tower: Any) -> Table:
    block, shape = (
        tower.stack.block,
        {"num_channels": tower.patches.num_channels, "image_size": _side(tower) * tower.patches.patch_size},
    )
    form = {
        "vision_use_head": tower.pooling is not None,
        "hidden_act": _name_of(block.feed_forward.hidden_act),
        "layer_norm_eps": block.norm.eps,
    }
    return {"model_type": "siglip_vision_model", **_layers(tower), **shape, **form}


def _paligemma(towers: Towers) -> Table:
    return {
        "projection_dim": towers["multi_modal_projector"].maps[-1].size,
        "vision_config": _siglip(towers["vision_tower"]),
    }


def _gemma3(towers: Towers) -> Table:
    """`mm_tokens_per_image`: how many vectors an image becomes."""
    tower, merge = towers["vision_tower"], towers["multi_modal_projector"].merge
    return {"mm_tokens_per_image": (_side(tower) // merge) ** 2, "vision_config": _siglip(tower)}


def _gemma4(towers: Towers) -> Table:
    """Either of its towers, or both."""
    sections: Table = {}
    if "vision_tower" in towers:
        sections["vision_config"] = _gemma4_vision(towers["vision_tower"], towers["embed_vision"])
    if "audio_tower" in towers:
        sections["audio_config"] = _gemma4_audio(towers["audio_tower"])
    return sections


def _gemma4_vision(tower: Any, projector: Any) -> Table:
    block = tower.stack.block
    heads = {
        "num_key_value_heads": block.attention.num_key_value_heads or block.attention.num_attention_heads,
        "head_dim": block.attention.head_dim,
    }
    around = {"position_embedding_size": tower.positions.rows, "pooling_kernel_size": projector.merge}
    held = {"use_clipped_linears": tower.clamps > 0, "standardize": tower.standardize}
    form = {"hidden_activation": _name_of(block.feed_forward.hidden_act), "rms_norm_eps": block.norm.eps}
    return {"model_type": "gemma4_vision", **_layers(tower), **heads, **around, **held, **form}


def _gemma4_audio(tower: Any) -> Table:
    layers = {
        "hidden_size": tower.hidden_size,
        "num_hidden_layers": tower.num_hidden_layers,
        "num_attention_heads": tower.attention.num_attention_heads,
    }
    windows = {
        "attention_context_left": tower.attention.context_left,
        "attention_context_right": tower.attention.context_right,
    }
    convolutions = {
        "subsampling_conv_channels": [one.channels for one in tower.subsampling.convolutions],
        "conv_kernel_size": tower.convolution.kernel_size,
    }
    form = {
        "hidden_act": _name_of(tower.convolution.hidden_act),
        "rms_norm_eps": tower.norm.eps,
        "use_clipped_linears": tower.clamps > 0,
    }
    return {
        "model_type": "gemma4_audio",
        **layers,
        **windows,
        **convolutions,
        "output_proj_dims": tower.output_size,
        **form,
    }


WRAPPERS: dict[str, tuple[str, Callable[[Mapping[str, Tower]], Table]]] = {
    "gemma": ("paligemma", _paligemma),
    "gemma3_text": ("gemma3", _gemma3),
    "gemma4_text": ("gemma4", _gemma4),
}
"""Model type of the text → (that of the wrapper, its towers → its sections and what else it says of them)."""
