"""Reads vision and audio encoders of multimodal wrappers, with the projectors to the text model's width.

An encoder that is not supported is left out, with a remark. A config without encoders imports none of these files.

A reader of an encoder may be changed without reading the others: each of them returns a part of `components/towers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ....components.choice import PartError
from ....components.towers import Tower
from ....errors import InputError
from ..config import Config
from ..family import Family
from ..parts import Table
from ..unknown import remark_on_ignored_fields
from .section import IGNORED, Section

SETTINGS = ("aligner", "compression", "freeze", "generation", "projector", "quantization", "transformers.js")
"""Sections of a wrapper's config, without `_config`, that describe no further part of the model."""

SECTIONS = ("vision_config", "audio_config", "vq_config", "discrete_vision_config", "discrete_audio_config")


def sections_of(wrapper_type: str, file: str) -> Mapping[str, Section]:
    """Returns the supported sections of a wrapper's config by name. file: the family's `tower_file`."""
    if not file:
        return {}
    wrappers: dict[str, dict[str, Section]] = import_module(f".{file}", __package__).WRAPPERS
    return wrappers[wrapper_type]


def read_towers(wrapper_type: str, family: Family, wrapper: Mapping[str, Any], width: int) -> tuple[Table, list[str]]:
    """Returns the `towers` table of a wrapper's description, and remarks.

    wrapper_type: the wrapper's model type.
    family: its record.
    width: width of the text model.
    """
    supported_sections, towers, notes = sections_of(wrapper_type, family.tower_file), Table(), list[str]()
    for name in dict.fromkeys((*SECTIONS, *supported_sections, *family.uncounted_encoders)):
        section = wrapper.get(name)
        if name not in supported_sections:
            stated_type = section.get("model_type") if isinstance(section, dict) else None
            if isinstance(section, dict) or name in family.uncounted_encoders:
                encoder_type = stated_type or family.uncounted_encoders.get(name, name.removesuffix("_config"))
                notes.append(f"its encoder is not counted: {name}: '{encoder_type}' is not supported")
            continue
        if section is None and supported_sections[name].default_section is None:
            continue
        if section is None and not supported_sections[name].is_flat:
            notes.append(f"{name}: not given; its encoder has its class's defaults")
        try:
            tower_tables, remarks = _read_section(wrapper_type, wrapper, name, supported_sections[name], width)
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
        and not any(name in wrapper for name in supported_sections)
    ):
        notes.append(f"no vision or audio encoder is described: there is no {' and no '.join(supported_sections)}")
    return towers, [*notes, *_unread_sections(family, wrapper, {*SECTIONS, *supported_sections})]


def _unread_sections(family: Family, wrapper: Mapping[str, Any], read_names: set[str]) -> list[str]:
    """Returns a remark for each further section of a config whose text model has its own."""
    if not isinstance(wrapper.get(family.text_section), dict):
        return []
    known_names = {
        family.text_section,
        *family.ignored_fields,
        *family.uncounted_encoders,
        *(f"{name}_config" for name in SETTINGS),
    }
    return [
        f"{name}: the part that it describes is not counted"
        for name, section in wrapper.items()
        if isinstance(section, dict) and name.endswith("_config") and name not in read_names | known_names
    ]


def _read_section(
    wrapper_type: str, wrapper: Mapping[str, Any], name: str, section: Section, width: int
) -> tuple[Table, list[str]]:
    """Reads one section. Raises `InputError` if it is not supported."""
    fields = section.default_section if wrapper.get(name) is None else wrapper[name]
    if not isinstance(fields, dict):
        raise InputError(f"{name}: {type(fields).__name__}; expected a table of fields")
    stated_type = fields.get("model_type")
    model_type = next(iter(section.defaults_by_type)) if stated_type in (None, "") else stated_type
    if not isinstance(model_type, str) or model_type not in section.defaults_by_type:
        raise InputError(f"{name}.model_type: {model_type!r}; expected one of {', '.join(section.defaults_by_type)}")
    config = Config(
        fields, section.defaults_by_type[model_type], model_type, location=f"{name}.", aliases=section.aliases
    )
    tower_tables = section.read_tower(Config(wrapper, section.wrapper_defaults, wrapper_type), config, width)
    for tower, table in tower_tables.items():
        try:
            TypeAdapter(Tower).validate_python(table)
        except ValidationError as error:
            raise InputError(f"{name}: {tower}: {_innermost_message(error)}") from None
    config.finish(IGNORED | section.ignored_fields)
    return tower_tables, [*config.notes, *remark_on_ignored_fields([field.path for field in config.unknown])]


def _innermost_message(error: ValidationError) -> str:
    """Returns the message of the innermost part's error."""
    detail = error.errors()[0]
    while isinstance(cause := detail.get("ctx", {}).get("error"), PartError):
        detail = cause.error.errors()[0]
    return str(detail["msg"]).removeprefix("Value error, ")
