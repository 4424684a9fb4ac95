"""Towers in the configs of multimodal wrappers: their encoders and what maps their output to the text model's width.

A tower that is not understood is left out, and a remark says so. A config without towers imports none of these files.
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
from .section import IGNORED, Section

FILES: dict[str, tuple[str, ...]] = {
    "siglip": ("gemma3", "shieldgemma2", "paligemma", "aya_vision", "cohere2_vision", "lfm2_vl", "t5gemma2"),
    "gemma": ("gemma4", "gemma4_unified", "gemma3n"),
    "pixtral": ("mistral3", "llama4", "lfm3_vl", "hunyuan_vl"),
    "qwen": (
        "qwen2_vl",
        "qwen2_5_vl",
        "qwen3_vl",
        "qwen3_vl_moe",
        "qwen3_5",
        "qwen3_5_moe",
        "kimi_k25",
        "ernie4_5_vl_moe",
        "minimax_m3_vl",
        "cohere_compass",
    ),
    "glm": ("glm4v", "glm4v_moe"),
    "llava": ("llava", "llava_next", "llava_onevision", "idefics3", "smolvlm", "internvl"),
    "audio": ("qwen2_audio", "voxtral", "phi4_multimodal"),
    "unread": ("aria", "emu3"),
}
"""File in this package → the wrappers whose towers it reads."""

SECTIONS = ("vision_config", "audio_config", "vq_config")


def sections_of(kind: str) -> Mapping[str, Section]:
    """The sections of a wrapper's config that are read, by name."""
    for file, kinds in FILES.items():
        if kind in kinds:
            wrappers: dict[str, dict[str, Section]] = import_module(f".{file}", __package__).WRAPPERS
            return wrappers[kind]
    return {}


def read_towers(kind: str, outer: Mapping[str, Any], width: int) -> tuple[Table, list[str]]:
    """(the `towers` table of a description,
    remarks) of a wrapper of model type `kind` around a text model of that width.
    """
    known, towers, notes = sections_of(kind), Table(), list[str]()
    for name in SECTIONS:
        given = outer.get(name)
        if name not in known:
            if isinstance(given, dict):
                what = given.get("model_type") or name.removesuffix("_config")
                notes.append(f"its tower is not counted: {name}: '{what}' is not understood")
            continue
        if given is None and known[name].built is None:
            continue
        if given is None:
            notes.append(f"{name}: not given; its towers are those of its class's defaults")
        try:
            tables, said = _read(kind, outer, name, known[name], width)
        except InputError as error:
            notes.append(f"its tower is not counted: {error}")
        else:
            towers |= tables
            notes += said
    if known and not towers and not notes and not any(name in outer for name in known):
        notes.append(f"no tower is described: there is no {' and no '.join(known)}")
    return towers, notes


def _read(kind: str, outer: Mapping[str, Any], name: str, section: Section, width: int) -> tuple[Table, list[str]]:
    """Raises `InputError` for what is not understood."""
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
    unknown = config.left_over(IGNORED | section.ignored)
    said = f"not understood, and taken to change no count: {', '.join(f'{name}.{field}' for field in unknown)}"
    return tables, [*config.notes, *([said] if unknown else [])]


def _innermost(error: ValidationError) -> str:
    """What is wrong inside the part of a part."""
    found = error.errors()[0]
    while isinstance(inner := found.get("ctx", {}).get("error"), PartError):
        found = inner.error.errors()[0]
    return str(found["msg"]).removeprefix("Value error, ")
