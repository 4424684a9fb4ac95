"""The class of `transformers` for a config, and the config fields that it is built from.

transformers: models/auto/modeling_auto, modeling_rope_utils.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ..errors import InputError
from ..sources.huggingface.family import Family
from ..sources.huggingface.heads import architecture_of
from ..sources.huggingface.registry import family_of, model_types, usual_name

OF_THE_HUB = ("model_type", "auto_map", "quantization_config", "transformers_version")
"""Fields that do not affect what a class builds."""

BY_LENGTH = ("dynamic", "longrope", "su")
"""Kinds of RoPE with angles that depend on the sequence length: some classes read the positions for it, which have no
values on meta.
"""


def witness_of(model_type: str) -> str:
    """The model type whose `transformers` class implements this one: itself, or for a family without a class, its
    `like`.
    """
    kind = usual_name(model_type)
    like = family_of(kind).like if kind in model_types() else None
    return like or kind


def family_behind(model_type: str) -> Family | None:
    """The record of the family whose class implements this model type; None if it is not supported."""
    kind = witness_of(model_type)
    return family_of(kind) if kind in model_types() else None


@cache
def _spellings() -> dict[str, list[str]]:
    """Lower-case name → the names of `transformers` that are spelled so."""
    import transformers

    found: dict[str, list[str]] = {}
    for name in vars(transformers)["__all__"]:  # dir() takes a third of a second to list it
        found.setdefault(name.lower(), []).append(name)
    return found


def class_of(config: Mapping[str, Any]) -> str:
    """The class that `architectures` names, case-insensitively (hubs have `MPTForCausalLM`, the library
    `MptForCausalLM`).

    If it names none, or one that exists only as code on a hub (`RWForCausalLM`), it is the language model of the model
    type. Raises `InputError` if there is none.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    given = architecture_of(config)
    spelled = _spellings().get(given.lower())
    if spelled:
        return given if given in spelled else spelled[0]
    kinds = (
        ("CAUSAL_LM",)
        if given.endswith("ForCausalLM")
        else ()
        if given
        else ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM")
    )
    for kind in kinds:
        found = getattr(auto, f"MODEL_FOR_{kind}_MAPPING_NAMES").get(witness_of(config["model_type"]))
        if isinstance(found, str):
            return found
    raise InputError(
        f"--against transformers: the installed transformers {transformers.__version__} has no {given or 'such model'}"
    )


def fields_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields for the configuration class, with plain RoPE for length-dependent RoPE: no count depends on it."""
    fields = {k: v for k, v in config.items() if k not in OF_THE_HUB}
    for name in ("rope_scaling", "rope_parameters"):
        given = fields.get(name)
        if given is False:  # means none; a configuration class rejects it
            del fields[name]
        if isinstance(given, dict) and (given.get("rope_type") or given.get("type")) in BY_LENGTH:
            fields[name] = {
                "rope_type": "default",
                **{k: given[k] for k in ("rope_theta", "partial_rotary_factor") if k in given},
            }
    if isinstance(fields.get("text_config"), dict):
        inner = fields["text_config"]
        fields["text_config"] = {**{k: inner[k] for k in ("model_type",) if k in inner}, **fields_of(inner)}
    return fields
