"""Writes configs of multimodal wrappers: a text model's config and the sections of its vision and audio encoders.

It is the inverse of `sources.huggingface.towers`, for wrappers whose record has `writes_towers`. A spec with other
vision or audio encoders cannot be written.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...model import ModelSpec
from ..huggingface.registry import FILE_OF, FILES, family_of
from .classes import wrapper_names

Table: TypeAlias = dict[str, Any]


def wrapped(config: Table, spec: ModelSpec) -> Table:
    """Returns the config of the wrapper that has the spec's vision and audio encoders.

    `config` is its text config.

    It returns `config` unchanged if the spec has no encoders or those of another wrapper.
    """
    kind = _wrapper_of(config["model_type"]) if spec.towers else ""
    write = family_of(kind).writes_towers if kind else None
    if write is None:
        return config
    try:
        sections = write(spec.towers)
    except (LookupError, AttributeError, TypeError):  # an encoder, or a part of one, that only this wrapper has
        return config
    without_head = config["architectures"][0].endswith("Model")
    text = {k: v for k, v in config.items() if k != "architectures"}
    class_fields = {"model_type": kind, "architectures": wrapper_names(kind, without_head)[:1]}
    return {**class_fields, "tie_word_embeddings": spec.tie_word_embeddings, "text_config": text, **sections}


def _wrapper_of(text: str) -> str:
    """Returns the wrapper of a text model's type that has `writes_towers`; both are in the same file."""
    context = (kind for kind in FILES[FILE_OF[text]] if family_of(kind).text == text)
    return next((kind for kind in context if family_of(kind).writes_towers is not None), "")
