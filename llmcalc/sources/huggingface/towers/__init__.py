"""Reads the vision and audio encoders of multimodal wrappers' configs, with the projectors to the text model's width.

An encoder that is not supported is left out, with a remark. A config without encoders imports none of these files.
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
from ..parts import Table
from ..unknown import remark
from .section import IGNORED, Section

SECTIONS = ("vision_config", "audio_config", "vq_config")


def sections_of(kind: str, file: str) -> Mapping[str, Section]:
    """Returns the supported sections of a wrapper's config, by name. file: `tower_file` of its family's record."""
    if not file:
        return {}
    wrappers: dict[str, dict[str, Section]] = import_module(f".{file}", __package__).WRAPPERS
    return wrappers[kind]


def read_towers(kind: str, file: str, outer: Mapping[str, Any], width: int) -> tuple[Table, list[str]]:
    """Returns (the `towers` table of a description, remarks) of a wrapper.

    kind: the wrapper's model type.
    width: width of the text model.
    """
    known, towers, notes = sections_of(kind, file), Table(), list[str]()
    for name in SECTIONS:
        given = outer.get(name)
        if name not in known:
            if isinstance(given, dict):
                what = given.get("model_type") or name.removesuffix("_config")
                notes.append(f"its encoder is not counted: {name}: '{what}' is not supported")
            continue
        if given is None and known[name].built is None:
            continue
        if given is None:
            notes.append(f"{name}: not given; its encoder has its class's defaults")
        try:
            tables, said = _read(kind, outer, name, known[name], width)
        except InputError as error:
            notes.append(f"its encoder is not counted: {error}")
        else:
            towers |= tables
            notes += said
    if known and not towers and not notes and not any(name in outer for name in known):
        notes.append(f"no vision or audio encoder is described: there is no {' and no '.join(known)}")
    return towers, notes


def _read(kind: str, outer: Mapping[str, Any], name: str, section: Section, width: int) -> tuple[Table, list[str]]:
    """Reads one section. Raises `InputError` if it is not supported."""
    given = section.built if outer.get(name) is None else outer[name]
    if not isinstance(given, dict):
        raise InputError(f"{name}: {type(given).__name__}; expected a table of fields")
    own = given.get("model_type", next(iter(section.kinds)))
    if not isinstance(own, str) or own not in section.kinds:
        raise InputError(f"{name}.model_type: {own!r}; expected one of {', '.join(section.kinds)}")
    config = Config(given, section.kinds[own], own, where=f"{name}.")
    tables = section.read(Config(outer, section.above, kind), config, width)
    for tower, table in tables.items():
        try:
            TypeAdapter(Tower).validate_python(table)
        except ValidationError as error:
            raise InputError(f"{name}: {tower}: {_innermost(error)}") from None
    config.close(IGNORED | section.ignored)
    return tables, [*config.notes, *remark([one.path for one in config.unknown])]


def _innermost(error: ValidationError) -> str:
    """Returns the error of the innermost part."""
    found = error.errors()[0]
    while isinstance(inner := found.get("ctx", {}).get("error"), PartError):
        found = inner.error.errors()[0]
    return str(found["msg"]).removeprefix("Value error, ")
