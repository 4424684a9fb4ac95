"""Configs of multimodal wrappers: a text model's config inside, and those of its towers beside it.

The way back from `sources.huggingface.towers`, for the wrappers whose record says how their towers are written; a spec
with towers that are no such wrapper's is written by none.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ...model import ModelSpec
from ..huggingface.registry import FILE_OF, FILES, family_of
from .classes import wrapper_names

Table: TypeAlias = dict[str, Any]


def wrapped(config: Table, spec: ModelSpec) -> Table:
    """The config of the wrapper whose towers the spec has, with `config` as its text model's;
    `config` itself where it has none or another's.
    """
    kind = _wrapper_of(config["model_type"]) if spec.towers else ""
    write = family_of(kind).writes_towers if kind else None
    if write is None:
        return config
    try:
        sections = write(spec.towers)
    except (LookupError, AttributeError, TypeError):  # a tower, or a part of one, that only this wrapper's have
        return config
    bare = config["architectures"][0].endswith("Model")
    text = {k: v for k, v in config.items() if k != "architectures"}
    about = {"model_type": kind, "architectures": wrapper_names(kind, bare)[:1]}
    return {**about, "tie_word_embeddings": spec.tie_word_embeddings, "text_config": text, **sections}


def _wrapper_of(text: str) -> str:
    """The wrapper around a text model's type whose towers are written; it stands in the same file."""
    around = (kind for kind in FILES[FILE_OF[text]] if family_of(kind).text == text)
    return next((kind for kind in around if family_of(kind).writes_towers is not None), "")
