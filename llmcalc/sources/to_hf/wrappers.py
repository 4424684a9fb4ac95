"""Configs of multimodal wrappers: a text model's config inside, and that of a vision tower beside it."""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any, TypeAlias

from ...components.towers.projector import Projector
from ...components.towers.vision import VisionTower
from ...model import ModelSpec
from .classes import prefix
from .fields import ACTIVATIONS

Table: TypeAlias = dict[str, Any]


def wrapped(config: Table, spec: ModelSpec) -> Table:
    """The config of the wrapper whose towers the spec has, with `config` as its text model's; `config` itself where it has none or another's."""
    found = WRAPPERS.get(config["model_type"])
    tower = next((tower for tower in spec.towers.values() if isinstance(tower, VisionTower)), None)
    projector = next((tower for tower in spec.towers.values() if isinstance(tower, Projector)), None)
    if found is None or tower is None or projector is None or tower.positions is None:
        return config
    kind, vision, outer = found
    bare = config["architectures"][0].endswith("Model")
    text = {k: v for k, v in config.items() if k != "architectures"}
    about = {"model_type": kind, "architectures": [prefix(kind) + ("Model" if bare else "ForConditionalGeneration")]}
    return {**about, "tie_word_embeddings": spec.tie_word_embeddings, **outer(tower, projector), "text_config": text, "vision_config": vision(tower, projector)}


def _layers(tower: VisionTower) -> Table:
    """What any of these encoders is told of its layers."""
    block = tower.stack.block
    network: Any = block.feed_forward
    mixer: Any = block.attention
    sizes = {"hidden_size": tower.hidden_size, "intermediate_size": network.intermediate_size, "num_hidden_layers": tower.stack.num_hidden_layers}
    return {**sizes, "num_attention_heads": mixer.num_attention_heads, "patch_size": tower.patches.patch_size}


def _act(tower: VisionTower) -> str:
    network: Any = tower.stack.block.feed_forward
    act: str = network.hidden_act
    return ACTIVATIONS.get(act, act)


def _side(tower: VisionTower) -> int:
    """Patches along one side of the image that the table of positions is for."""
    return isqrt(tower.positions.rows if tower.positions is not None else 0)


def _siglip(tower: VisionTower, projector: Projector) -> Table:
    shape = {"num_channels": tower.patches.num_channels, "image_size": _side(tower) * tower.patches.patch_size, "vision_use_head": tower.pooling is not None}
    return {"model_type": "siglip_vision_model", **_layers(tower), **shape, "hidden_act": _act(tower), "layer_norm_eps": tower.stack.block.norm.eps}


def _pooled(tower: VisionTower, projector: Projector) -> Table:
    """Gemma 3: how many vectors an image becomes."""
    return {"mm_tokens_per_image": (_side(tower) // projector.merge) ** 2}


def _gemma4_vision(tower: VisionTower, projector: Projector) -> Table:
    mixer: Any = tower.stack.block.attention
    heads = {"num_key_value_heads": mixer.num_key_value_heads or mixer.num_attention_heads, "head_dim": mixer.head_dim}
    around = {"position_embedding_size": tower.positions.rows if tower.positions is not None else 0, "pooling_kernel_size": projector.merge}
    held = {"use_clipped_linears": tower.clamps > 0, "standardize": tower.standardize}
    form = {"hidden_activation": _act(tower), "rms_norm_eps": tower.stack.block.norm.eps}
    return {"model_type": "gemma4_vision", **_layers(tower), **heads, **around, **held, **form}


def _none(tower: VisionTower, projector: Projector) -> Table:
    return {}


WRAPPERS: dict[str, tuple[str, Callable[[VisionTower, Projector], Table], Callable[[VisionTower, Projector], Table]]] = {
    "gemma": ("paligemma", _siglip, lambda tower, projector: {"projection_dim": projector.maps[-1].size}),
    "gemma3_text": ("gemma3", _siglip, _pooled),
    "gemma4_text": ("gemma4", _gemma4_vision, _none),
}
"""Model type of the text → (that of the wrapper, its vision_config, its further fields)."""
