"""Writes configs of multimodal wrappers: a text model's config and the sections of its vision and audio encoders.

It is the inverse of `sources.huggingface.towers`, for wrappers whose record has `write_tower_sections`. A spec with
other vision or audio encoders cannot be written.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...model import ModelSpec
from ..huggingface.registry import FILE_BY_TYPE, TYPES_BY_FILE, family_of
from .classes import wrapper_names

Table: TypeAlias = dict[str, Any]


def wrapped_config(config: Table, spec: ModelSpec) -> Table:
    """Returns the config of the wrapper that has the spec's vision and audio encoders.

    `config` is its text config.

    It returns `config` unchanged if the spec has no encoders or those of another wrapper.
    """
    model_type = wrapper_type_of(config["model_type"]) if spec.towers else ""
    write_sections = family_of(model_type).write_tower_sections if model_type else None
    if write_sections is None:
        return config
    try:
        config_sections = write_sections(spec.towers)
    except (LookupError, AttributeError, TypeError):  # an encoder, or a part of one, that only this wrapper has
        return config
    lacks_head = config["architectures"][0].endswith("Model")
    text_config = {name: value for name, value in config.items() if name != "architectures"}
    class_fields = {"model_type": model_type, "architectures": wrapper_names(model_type, lacks_head)[:1]}
    return {
        **class_fields,
        "tie_word_embeddings": spec.tie_word_embeddings,
        "text_config": text_config,
        **config_sections,
    }


def wrapper_type_of(text_model_type: str) -> str:
    """Returns a wrapper's model type that has this text model and can write its encoders; empty if none does.

    Only wrappers that are read in the text type's own file are searched.
    """
    model_types = TYPES_BY_FILE[FILE_BY_TYPE[text_model_type]]
    text_model_types = (model_type for model_type in model_types if family_of(model_type).text_type == text_model_type)
    return next(
        (model_type for model_type in text_model_types if family_of(model_type).write_tower_sections is not None), ""
    )
