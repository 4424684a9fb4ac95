"""Writes vision and audio encoders as sections of a wrapper's config; the inverse of the readers in `towers`."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import Any

from .field_writers import WRITTEN_ACTIVATIONS
from .parts import Table

TowerSpecs = Mapping[str, Any]
"""Name of an encoder in the wrapper's class → its spec."""


def _activation_name(activation: str) -> str:
    return WRITTEN_ACTIVATIONS.get(activation, activation)


def _layer_fields(tower: Any) -> Table:
    """Returns the config fields that describe a vision encoder's layers."""
    block = tower.stack.block
    layer_fields = {
        "hidden_size": tower.hidden_size,
        "intermediate_size": block.feed_forward.intermediate_size,
        "num_hidden_layers": tower.stack.num_hidden_layers,
    }
    return {
        **layer_fields,
        "num_attention_heads": block.attention.num_attention_heads,
        "patch_size": tower.patches.patch_size,
    }


def _patches_per_side(tower: Any) -> int:
    """Returns the number of patches along one side of an image, from the size of the position embedding."""
    return isqrt(tower.positions.rows)


def _siglip_section(tower: Any) -> Table:
    block = tower.stack.block
    image_size = _patches_per_side(tower) * tower.patches.patch_size
    image_fields = {"num_channels": tower.patches.num_channels, "image_size": image_size}
    layer_fields = {
        "vision_use_head": tower.pooling is not None,
        "hidden_act": _activation_name(block.feed_forward.hidden_act),
        "layer_norm_eps": block.norm.eps,
    }
    return {"model_type": "siglip_vision_model", **_layer_fields(tower), **image_fields, **layer_fields}


def paligemma_sections(towers: TowerSpecs) -> Table:
    vision_config = _siglip_section(towers["vision_tower"])
    return {"projection_dim": towers["multi_modal_projector"].maps[-1].size, "vision_config": vision_config}


def gemma3_sections(towers: TowerSpecs) -> Table:
    """Returns Gemma 3's config sections, with `mm_tokens_per_image`, the number of vectors per image."""
    tower, merge_size = towers["vision_tower"], towers["multi_modal_projector"].merge
    mm_tokens_per_image = (_patches_per_side(tower) // merge_size) ** 2
    return {"mm_tokens_per_image": mm_tokens_per_image, "vision_config": _siglip_section(tower)}


def gemma4_sections(towers: TowerSpecs) -> Table:
    """Returns Gemma 4's config sections for the vision encoder, the audio encoder, or both."""
    config_sections: Table = {}
    if "vision_tower" in towers:
        config_sections["vision_config"] = _gemma4_vision_section(towers["vision_tower"], towers["embed_vision"])
    if "audio_tower" in towers:
        config_sections["audio_config"] = _gemma4_audio_section(towers["audio_tower"])
    return config_sections


def _gemma4_vision_section(tower: Any, projector: Any) -> Table:
    block = tower.stack.block
    num_key_value_heads = block.attention.num_key_value_heads or block.attention.num_attention_heads
    heads = {"num_key_value_heads": num_key_value_heads, "head_dim": block.attention.head_dim}
    size_fields = {"position_embedding_size": tower.positions.rows, "pooling_kernel_size": projector.merge}
    flags = {"use_clipped_linears": tower.clamps > 0, "standardize": tower.standardize}
    hidden_activation = _activation_name(block.feed_forward.hidden_act)
    layer_fields = {"hidden_activation": hidden_activation, "rms_norm_eps": block.norm.eps}
    return {"model_type": "gemma4_vision", **_layer_fields(tower), **heads, **size_fields, **flags, **layer_fields}


def _gemma4_audio_section(tower: Any) -> Table:
    size_fields = {
        "hidden_size": tower.hidden_size,
        "num_hidden_layers": tower.num_hidden_layers,
        "num_attention_heads": tower.attention.num_attention_heads,
    }
    window_fields = {
        "attention_chunk_size": tower.attention.chunk_size,
        "attention_context_left": tower.attention.context_left,
        "attention_context_right": tower.attention.context_right,
    }
    convolution_fields = {
        "subsampling_conv_channels": [convolution.channels for convolution in tower.subsampling.convolutions],
        "conv_kernel_size": tower.convolution.kernel_size,
    }
    hidden_act = _activation_name(tower.convolution.hidden_act)
    layer_fields = {"hidden_act": hidden_act, "rms_norm_eps": tower.norm.eps, "use_clipped_linears": tower.clamps > 0}
    return {
        "model_type": "gemma4_audio",
        **size_fields,
        **window_fields,
        **convolution_fields,
        "output_proj_dims": tower.output_size,
        **layer_fields,
    }
