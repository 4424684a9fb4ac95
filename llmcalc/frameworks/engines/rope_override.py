"""Applies engine flags that change a model's config: RoPE scaling, and classes of classifiers or reward models.

Those of rotary positions change context lengths and RoPE's tables alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, short_repr
from ...sources.preset import Preset
from ...workload.setting import option

SCALING_FLAG = "rope_scaling"
"""Field of the flag whose value is a table of RoPE scaling."""

OVERRIDE_FLAGS = ("hf_overrides", "json_model_override_args")
"""Fields of the flags whose value is a table that overrides fields of the model's config."""

SCALING_FIELDS = ("rope_parameters", "rope_scaling")
"""Fields of a model's config that state RoPE scaling, the newer name first."""

INNER_CONFIG = "text_config"
"""Field that holds the decoder's config in the config of a model with encoders."""

CLASS_OVERRIDE_FLAG = "--hf-overrides"
"""vLLM's flag that may override the model's class."""

CLASSIFIER_CLASS = "ForSequenceClassification"
"""Suffix of the names of classes whose output is scores instead of logits."""

CLASSIFIER_FIELDS = ("classifier_from_token", "is_original_qwen3_reranker", "method")
"""Config fields that select rows of the head for a class that outputs scores (vLLM's examples/pooling/score)."""


def has_score_class(flags: Mapping[str, Any]) -> bool:
    """Whether a flag sets `architectures` to a classifier or reward model, such as Qwen3ForSequenceClassification."""
    return _are_classifier_classes((flags.get("hf_overrides") or {}).get("architectures"))


def _are_classifier_classes(class_names: Any) -> bool:
    """Whether class names belong to classifiers or reward models, which output scores instead of logits."""
    return (
        isinstance(class_names, list)
        and bool(class_names)
        and all(isinstance(class_name, str) and class_name.endswith(CLASSIFIER_CLASS) for class_name in class_names)
    )


def preset_with_overridden_rope(preset: Preset, flags: Mapping[str, Any]) -> Preset:
    """Returns the model with the RoPE scaling that flags set, or unchanged without such flags.

    Raises `InputError` for an override of other fields of the config.
    """
    rope_parameters = flags.get(SCALING_FLAG) or None
    flag_name = option(SCALING_FLAG)
    for flag_field in OVERRIDE_FLAGS:
        if overridden_fields := flags.get(flag_field):
            flag_name = option(flag_field)
            rope_parameters = _overridden_scaling(overridden_fields, flag_name) or rope_parameters
    if rope_parameters is None:
        return preset
    for scaling_field, field_type in (("factor", int | float), ("original_max_position_embeddings", int)):
        scaling_value = rope_parameters.get(scaling_field, 1)
        if not isinstance(scaling_value, field_type) or not 0 < scaling_value <= 10**9:
            raise InputError(f"{flag_name}: {scaling_field} {short_repr(scaling_value)}; expected a number above 0")
    earlier_parameters = preset.rope_parameters or {}
    if "full_attention" in earlier_parameters and "full_attention" not in rope_parameters:
        rope_parameters = {**earlier_parameters, "full_attention": rope_parameters}
    return preset.model_copy(update={"rope_parameters": dict(rope_parameters)})


def _overridden_scaling(overridden_fields: Mapping[str, Any], flag_name: str) -> Mapping[str, Any] | None:
    """Returns the RoPE scaling that overrides of the model's config set; None if they set none."""
    inner_fields = overridden_fields.get(INNER_CONFIG, {})
    if not isinstance(inner_fields, Mapping):
        raise InputError(f"{flag_name}: {INNER_CONFIG} {short_repr(inner_fields)}; expected a JSON object")
    all_fields = {
        config_key: config_value for config_key, config_value in overridden_fields.items() if config_key != INNER_CONFIG
    } | dict(inner_fields)
    rope_parameters: Mapping[str, Any] | None = None
    for field_name, field_value in all_fields.items():
        is_for_classifier = flag_name == CLASS_OVERRIDE_FLAG and (
            field_name in CLASSIFIER_FIELDS or (field_name == "architectures" and _are_classifier_classes(field_value))
        )
        if field_name == "rope_theta" or is_for_classifier:
            continue
        if field_name not in SCALING_FIELDS:
            raise InputError(
                f"{flag_name}: {short_repr(field_name)} changes the model; expected --set PATH=VALUE of llmcalc"
            )
        if field_value is not None and not isinstance(field_value, Mapping):
            raise InputError(f"{flag_name}: {field_name} {short_repr(field_value)}; expected a JSON object")
        rope_parameters = field_value or rope_parameters
    return rope_parameters
