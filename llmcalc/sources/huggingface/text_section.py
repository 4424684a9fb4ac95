"""Handles configs whose text model's sizes are in a section that their class does not read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import InputError, short_repr
from .config import DEPTH_FIELDS, SIZE_FIELDS, WIDTH_FIELDS
from .description import ConfigDescription
from .registry import FILE_BY_TYPE, family_of, usual_name

OTHER_TEXT_SECTIONS = ("text_config", "llm_config", "lm_config", "language_config", "decoder_config")
"""Names of the section in published configs, such as `lm_config` of GLM-ASR and `decoder_config` of VibeVoice in their
own forms.
"""

USUAL_SIZE_NAMES = {**dict.fromkeys(WIDTH_FIELDS, "hidden_size"), **dict.fromkeys(DEPTH_FIELDS, "num_hidden_layers")}
"""Name of a width or depth field in published configs → the usual field name."""


def with_text_section(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[str]]:
    """Returns the config with its text model's section under the usual name, with a remark if the section is renamed.

    Sizes beside the section may repeat those in it (Unlimited-OCR).

    Raises `InputError` for a config that has unknown sections and no size of a text model, which its class would take
    from defaults.
    """
    config = _with_replaced_sections(config)
    model_type = config.get("model_type")
    stated_model_type = usual_name(model_type) if isinstance(model_type, str) else ""
    family = family_of(stated_model_type) if stated_model_type in FILE_BY_TYPE else None
    if family is None or family.text_type is None or config.get(family.text_section) is not None:
        return config, []
    section_names = [
        section_key
        for section_key, text_section in config.items()
        if isinstance(text_section, dict) and section_key.endswith("_config")
    ]
    section_sizes = {size_field: config[size_field] for size_field in SIZE_FIELDS if size_field in config}
    is_repeated = any(
        section_key in section_names and section_sizes.items() <= config[section_key].items()
        for section_key in OTHER_TEXT_SECTIONS
    )
    if section_sizes and not is_repeated:
        return config, []
    nested_sections = [
        section_key for section_key in section_names if isinstance(config[section_key].get(family.text_section), dict)
    ]
    if len(nested_sections) == 1:  # `thinker_config` of Qwen3-ASR in its own form
        unwrapped_config = {
            **config[nested_sections[0]],
            **{
                section_key: section_value
                for section_key, section_value in config.items()
                if section_key != nested_sections[0]
            },
        }
        return unwrapped_config, [f"{nested_sections[0]}: its sections are read as those of the config"]
    other_sections = [section_name for section_name in OTHER_TEXT_SECTIONS if section_name in section_names]
    if len(other_sections) == 1:
        renamed_config = {
            family.text_section if section_key == other_sections[0] else section_key: section_value
            for section_key, section_value in config.items()
        }
        return renamed_config, [f"{other_sections[0]}: read as {family.text_section}"]
    known_sections = {*family.uncounted_encoders, "vision_config", "audio_config", "quantization_config"}
    if other_sections or not known_sections.issuperset(section_names):
        raise InputError(
            f"{family.text_section}: missing; expected the section with the text model's sizes (the config has "
            f"{', '.join(section_names)})"
        )
    return config, []


def _with_replaced_sections(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the config with CLIP's `text_config_dict` and `vision_config_dict` in place of its sections.

    They are sections of older configs. Beside a section, the class replaces each field of that section by them.
    """
    older_names = [f"{section_name}_dict" for section_name in ("text_config", "vision_config")]
    return {
        **{field_name: field_value for field_name, field_value in config.items() if field_name not in older_names},
        **{
            field_name.removesuffix("_dict"): config[field_name]
            for field_name in older_names
            if isinstance(config.get(field_name), dict)
        },
    }


def require_read_sizes(config_description: ConfigDescription) -> None:
    """Raises `InputError` if the class ignores a config section's sizes and would use its defaults.

    Sections that repeat the defaults are those of other code (Cohere Transcribe in NeMo's form). Of a text model's
    section each size is compared that the class takes from its defaults; of others the width, where the class has both
    width and depth from them.
    """
    default_sizes: dict[str, list[int]] = {}
    default_text_sizes: dict[str, list[int]] = {}
    for field_path, default_size in config_description.default_sizes.items():
        *section_names, size_name = field_path.split(".")
        default_sizes.setdefault(size_name, []).append(default_size)
        if not section_names or section_names[-1] in OTHER_TEXT_SECTIONS:
            default_text_sizes.setdefault(size_name, []).append(default_size)
    for unknown_field in config_description.unknown_fields:
        section_value = unknown_field.value if isinstance(unknown_field.value, dict) else {}
        is_text_section = unknown_field.path in OTHER_TEXT_SECTIONS
        if not is_text_section and not {"hidden_size", "num_hidden_layers"} <= default_sizes.keys():
            continue
        for name, stated_size in section_value.items():
            size_name = USUAL_SIZE_NAMES.get(name, str(name))
            is_compared = name in WIDTH_FIELDS or (is_text_section and type(stated_size) is int)
            compared_sizes = default_text_sizes if is_text_section else default_sizes
            if is_compared and stated_size not in compared_sizes.get(size_name, [stated_size]):
                size_text = (
                    f"a width, {short_repr(stated_size)}"
                    if name in WIDTH_FIELDS
                    else f"{name} = {short_repr(stated_size)}"
                )
                raise InputError(
                    f"{unknown_field.path}: a section with {size_text}, which the class of "
                    f"'{config_description.model_type}' does not read; expected the sizes where that class has them"
                )
