"""Describes the module names in a model's checkpoint, from its config and its `Family`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...flow.module_names import CLASS_PREFIXES, Checkpoint
from .description import text_model_of
from .head_kinds import architecture_of
from .registry import family_of, library_classes, model_type_of_class_name, model_types, usual_name


def checkpoint_of(config: Mapping[str, Any]) -> Checkpoint:
    """Returns the description of the checkpoint to which a parsed `config.json` belongs.

    Raises `InputError` if its model type is not supported.
    """
    text_model_type = text_model_of(config)[2]
    types = dict.fromkeys(
        (model_type_of_class_name(architecture_of(config)), usual_name(config["model_type"]), text_model_type)
    )
    base_model_types = [
        family_of(model_type).class_model_type or model_type for model_type in types if model_type in model_types()
    ]
    name_prefixes = (
        f"{base_class}."
        for model_type in base_model_types
        for base_class in library_classes().bases.get(model_type, ())
    )
    family = family_of(base_model_types[-1])
    checkpoint_config = _with_unconverted_modules(config, family.unconverted_modules)
    return Checkpoint(
        checkpoint_config, family.modules, family.earlier_names, tuple(dict.fromkeys((*CLASS_PREFIXES, *name_prefixes)))
    )


def _with_unconverted_modules(config: Mapping[str, Any], module_patterns: tuple[str, ...]) -> Mapping[str, Any]:
    """Returns the config with more modules in the list of modules that the quantization leaves unquantized."""
    quantization_config, text_config = config.get("quantization_config"), config.get("text_config")
    if quantization_config is None and isinstance(text_config, dict):
        changed_text_config = _with_unconverted_modules(text_config, module_patterns)
        return config if changed_text_config is text_config else {**config, "text_config": changed_text_config}
    if (
        not module_patterns
        or not isinstance(quantization_config, dict)
        or not isinstance(quantization_config.get("ignore"), list)
    ):
        return config
    ignore = [*quantization_config["ignore"], *module_patterns]
    return {**config, "quantization_config": {**quantization_config, "ignore": ignore}}
