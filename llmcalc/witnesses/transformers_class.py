"""Finds the class of `transformers` for a config, and the config fields from which the class is built.

transformers: models/auto/modeling_auto, modeling_rope_utils.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

from ..errors import InputError
from ..sources.huggingface.family import Family
from ..sources.huggingface.head_kinds import architecture_of
from ..sources.huggingface.registry import family_of, library_class_names, model_types, usual_name

HUB_FIELDS = ("model_type", "auto_map", "quantization_config", "transformers_version")
"""Fields that do not affect what a class builds."""

LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope", "su")
"""Kinds of RoPE whose angles depend on the sequence length, for which some classes read positions; on the meta device
these have no values.
"""


def class_model_type(model_type: str) -> str:
    """Returns the model type whose `transformers` class computes models of this type.

    It is the model type itself, or for a family without a class its `class_model_type`.
    """
    canonical_type = usual_name(model_type)
    similar_family = family_of(canonical_type).class_model_type if canonical_type in model_types() else None
    return similar_family or canonical_type


def family_of_class(model_type: str) -> Family | None:
    """Returns the `Family` whose class computes a model type; None for an unsupported type."""
    class_type = class_model_type(model_type)
    return family_of(class_type) if class_type in model_types() else None


def require_library_class(config: Mapping[str, Any]) -> None:
    """Raises `InputError` for a model type whose class is repository code, or that cannot be built."""
    family = family_of_class(config["model_type"])
    if family is not None and family.source and config["model_type"] in library_class_names():
        raise InputError(
            f"--against transformers: transformers cannot build the class of '{config['model_type']}', whose source is "
            f"{family.source}; expected --against reference"
        )
    if family is not None and family.source:
        raise InputError(
            f"--against transformers: the class of '{config['model_type']}' is code of its own repository, which "
            f"llmcalc never runs ({family.source}); expected --against reference"
        )


@cache
def _names_by_lower_case() -> dict[str, list[str]]:
    """Returns the class names of `transformers` by lower-case class name."""
    import transformers

    class_names: dict[str, list[str]] = {}
    for class_name in vars(transformers)["__all__"]:  # dir() takes a third of a second to list it
        class_names.setdefault(class_name.lower(), []).append(class_name)
    return class_names


def class_name_of(config: Mapping[str, Any]) -> str:
    """Returns the class name in `architectures`, as the library spells it.

    Hubs have `MPTForCausalLM`, the library `MptForCausalLM`.

    If it names none, or one that exists only as code on a hub (`RWForCausalLM`), it is the language model of the model
    type. Raises `InputError` if there is none.
    """
    import transformers
    from transformers.models.auto import modeling_auto as auto

    architecture = architecture_of(config)
    class_names = _names_by_lower_case().get(architecture.lower())
    if class_names:
        return architecture if architecture in class_names else class_names[0]
    mapping_names: tuple[str, ...] = ()
    if architecture.endswith("ForCausalLM"):
        mapping_names = ("CAUSAL_LM",)
    elif not architecture:
        mapping_names = ("SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "CAUSAL_LM")
    for mapping_name in mapping_names:
        class_name = getattr(auto, f"MODEL_FOR_{mapping_name}_MAPPING_NAMES").get(
            class_model_type(config["model_type"])
        )
        if isinstance(class_name, str):
            return class_name
    raise InputError(
        f"--against transformers: the installed transformers {transformers.__version__} has no "
        f"{architecture or 'such model'}"
    )


def load_class(config: Mapping[str, Any]) -> Any:
    """Returns the class that `architectures` names, even if the library does not export it (Kosmos-2)."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    architecture, class_type = architecture_of(config), class_model_type(config["model_type"])
    if architecture.lower() not in _names_by_lower_case() and class_type in CONFIG_MAPPING:
        module_name = CONFIG_MAPPING[class_type].__module__.replace(".configuration_", ".modeling_")
        module_attributes = vars(import_module(module_name)) if module_name.startswith("transformers.models.") else {}
        unlisted_class = module_attributes.get(architecture)
        if isinstance(unlisted_class, type) and issubclass(unlisted_class, transformers.PreTrainedModel):
            return unlisted_class
    return getattr(transformers, class_name_of(config))


def class_config_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the configuration class's fields; RoPE that depends on the length is replaced by plain RoPE."""
    class_fields = {
        field_key: config_value for field_key, config_value in config.items() if field_key not in HUB_FIELDS
    }
    for field_name in ("rope_scaling", "rope_parameters"):
        rope = class_fields.get(field_name)
        if rope is False:  # means none; a configuration class rejects it
            del class_fields[field_name]
        if isinstance(rope, dict) and (rope.get("rope_type") or rope.get("type")) in LENGTH_DEPENDENT_ROPE:
            class_fields[field_name] = {
                "rope_type": "default",
                **{field: rope[field] for field in ("rope_theta", "partial_rotary_factor") if field in rope},
            }
    if isinstance(class_fields.get("text_config"), dict):
        text_fields = class_fields["text_config"]
        class_fields["text_config"] = {
            **{field: text_fields[field] for field in ("model_type",) if field in text_fields},
            **class_config_fields(text_fields),
        }
    return class_fields
