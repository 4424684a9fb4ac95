"""Reads vision and audio encoders of multimodal wrappers, with the projectors to the text model's width.

An encoder that is not supported is left out, with a remark. A config without encoders imports none of these files.

A reader of an encoder may be changed without reading the others: each of them returns a part of `components/towers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ....components.part_choice import PartError
from ....components.towers import Tower
from ....errors import InputError, short_repr
from ..config import Config
from ..family import Family
from ..parts import Table
from ..registry import fixed_type_remark, is_fixed_section
from ..unknown_fields import remark_on_ignored_fields
from .section import IGNORED_FIELDS, TowerSection

SETTING_SECTIONS = ("aligner", "compression", "freeze", "generation", "projector", "quantization", "transformers.js")
"""Sections of a wrapper's config, without `_config`, that describe no further part of the model."""

TOWER_SECTIONS = ("vision_config", "audio_config", "vq_config", "discrete_vision_config", "discrete_audio_config")


def sections_of(root_model_type: str, reader_file: str) -> Mapping[str, TowerSection]:
    """Returns the supported sections of a wrapper's config, by name. reader_file: the family's `tower_file`."""
    if not reader_file:
        return {}
    sections_by_type: dict[str, dict[str, TowerSection]] = import_module(f".{reader_file}", __package__).WRAPPERS
    return sections_by_type[root_model_type]


def read_towers(
    root_model_type: str,
    family: Family,
    root_config: Mapping[str, Any],
    text_hidden_size: int,
    section_aliases: Mapping[str, Mapping[str, str]],
) -> tuple[Table, list[str]]:
    """Returns the `towers` table of a wrapper's description, and remarks.

    root_model_type: the wrapper's model type.
    family: its record.
    text_hidden_size: width of the text model.
    section_aliases: section → the `attribute_map` of its configuration class; under the empty name the wrapper's.
    """
    supported_sections, towers, notes = sections_of(root_model_type, family.tower_file), Table(), list[str]()
    for section_name in dict.fromkeys((*TOWER_SECTIONS, *supported_sections, *family.uncounted_encoders)):
        tower_section = root_config.get(section_name)
        if section_name not in supported_sections:
            stated_model_type = tower_section.get("model_type") if isinstance(tower_section, dict) else None
            if isinstance(tower_section, dict) or section_name in family.uncounted_encoders:
                encoder_type = stated_model_type or family.uncounted_encoders.get(
                    section_name, section_name.removesuffix("_config")
                )
                notes.append(f"its encoder is not counted: {section_name}: '{encoder_type}' is not supported")
            continue
        if tower_section is None and supported_sections[section_name].default_section is None:
            continue
        if tower_section is None and not supported_sections[section_name].is_flat:
            notes.append(f"{section_name}: not given; its encoder has its class's defaults")
        try:
            tower_tables, remarks = _read_section(
                root_model_type,
                family,
                root_config,
                section_name,
                supported_sections[section_name],
                text_hidden_size,
                section_aliases.get(section_name, {}),
                section_aliases.get("", {}),
            )
        except InputError as error:
            notes.append(f"its encoder is not counted: {error}")
        else:
            towers |= tower_tables
            notes += remarks
    if (
        family.text_type is not None
        and supported_sections
        and not towers
        and not notes
        and not any(section_name in root_config for section_name in supported_sections)
    ):
        notes.append(f"no vision or audio encoder is described: there is no {' and no '.join(supported_sections)}")
    return towers, [*notes, *_unread_sections(family, root_config, {*TOWER_SECTIONS, *supported_sections})]


def _unread_sections(family: Family, root_config: Mapping[str, Any], read_names: set[str]) -> list[str]:
    """Returns a remark for each section of a wrapper's config that neither text model nor encoders read."""
    if not isinstance(root_config.get(family.text_section), dict):
        return []
    known_names = {
        family.text_section,
        *family.ignored_fields,
        *family.uncounted_encoders,
        *(f"{section_name}_config" for section_name in SETTING_SECTIONS),
    }
    return [
        f"{name}: the part that it describes is not counted"
        for name, section in root_config.items()
        if isinstance(section, dict) and name.endswith("_config") and name not in read_names | known_names
    ]


def _read_section(
    root_model_type: str,
    family: Family,
    root_config: Mapping[str, Any],
    section_name: str,
    tower_section: TowerSection,
    text_hidden_size: int,
    class_aliases: Mapping[str, str],
    root_aliases: Mapping[str, str],
) -> tuple[Table, list[str]]:
    """Reads the encoder in one config section. Raises `InputError` if the section is not supported.

    family: the wrapper's record.
    class_aliases, root_aliases: the `attribute_map` of the configuration classes of the section and of the wrapper.
    """
    section_fields = (
        tower_section.default_section if root_config.get(section_name) is None else root_config[section_name]
    )
    if not isinstance(section_fields, dict):
        raise InputError(f"{section_name}: {short_repr(section_fields)}; expected a table of fields")
    stated_model_type = section_fields.get("model_type")
    class_model_type = next(iter(tower_section.defaults_by_type))
    model_type = class_model_type if stated_model_type in (None, "") else stated_model_type
    type_notes: list[str] = []
    has_fixed_model_type = is_fixed_section(root_model_type, section_name)
    if has_fixed_model_type and isinstance(model_type, str) and model_type not in tower_section.defaults_by_type:
        type_notes = [fixed_type_remark(root_model_type, section_name, model_type, class_model_type)]
        model_type = class_model_type
    if not isinstance(model_type, str) or model_type not in tower_section.defaults_by_type:
        raise InputError(
            f"{section_name}.model_type: {model_type!r}; expected one of {', '.join(tower_section.defaults_by_type)}"
        )
    defaults = tower_section.defaults_by_type[model_type]
    aliases = {**class_aliases, **tower_section.aliases}
    config = Config(section_fields, defaults, model_type, location=f"{section_name}.", aliases=aliases)
    wrapper_defaults = {**family.defaults, **tower_section.wrapper_defaults}
    wrapper_config = Config(root_config, wrapper_defaults, root_model_type, aliases=root_aliases)
    tower_tables = tower_section.read_tower(wrapper_config, config, text_hidden_size)
    for tower_name, tower_fields in tower_tables.items():
        try:
            TypeAdapter(Tower).validate_python(tower_fields)
        except ValidationError as error:
            raise InputError(f"{section_name}: {tower_name}: {_innermost_message(error)}") from None
    config.finish(IGNORED_FIELDS | tower_section.ignored_fields)
    return tower_tables, [
        *type_notes,
        *config.notes,
        *remark_on_ignored_fields([unknown_field.path for unknown_field in config.unknown_fields]),
    ]


def _innermost_message(error: ValidationError) -> str:
    """Returns the message of the innermost component's error in a nested validation error."""
    error_detail = error.errors()[0]
    while isinstance(cause := error_detail.get("ctx", {}).get("error"), PartError):
        error_detail = cause.error.errors()[0]
    return str(error_detail["msg"]).removeprefix("Value error, ")
