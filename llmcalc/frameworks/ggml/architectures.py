"""Checks whether a version of llama.cpp or a fork supports a model, by the class name in the checkpoint's config.

Source: conversion/__init__.py of llama.cpp (`TEXT_MODEL_MAP`, `MMPROJ_MODEL_MAP`; earlier, the classes that
convert_hf_to_gguf.py registers), and conversion/base.py (`get_model_architecture`) for the name that decides.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError, short_repr
from ...record import TEXT_SECTIONS
from ...sources.preset import Preset
from ..engines.engine import EngineVersion
from ..engines.rank import architectures
from ..engines.versions import parse_version
from .gguf_model import GgufModel
from .versions import GgmlEngineRecord


def converted_class(preset: Preset) -> str:
    """Returns the class name under which llama.cpp converts a checkpoint's text model; empty if unknown.

    Of a GGUF file none is needed.
    """
    if GgufModel.from_quantize_flag(preset, None).gguf_file is not None:
        return ""
    config = preset.config or {}
    # the class of the text model decides before that of the whole model
    text_sections = [config.get(section_name) for section_name in TEXT_SECTIONS]
    text_classes = [
        text_section["architectures"]
        for text_section in text_sections
        if isinstance(text_section, dict) and isinstance(text_section.get("architectures"), list)
    ]
    return next(
        (str(class_name) for class_names in (*text_classes, architectures(preset)) for class_name in class_names), ""
    )


def check_architecture(preset: Preset, engine_record: GgmlEngineRecord, engine_version: EngineVersion) -> None:
    """Raises `InputError` for a model that a version does not support; an unknown class name is accepted."""
    class_name = converted_class(preset)
    if not class_name:
        return
    registered_name = _registered_name(preset, engine_record, class_name)
    engine_title = f"{engine_record.title} {engine_version.version}"
    if registered_name not in {*engine_record.registered_classes, *engine_record.registered_encoders}:
        raise InputError(
            f"{engine_title} has no architecture for {short_repr(class_name)} ({engine_record.classes_source}); "
            "expected another --engine, or a GGUF file that exists as TARGET (model.gguf)"
        )
    for added_classes in engine_record.added_classes:
        if registered_name in added_classes.classes and parse_version(engine_version.version) <= parse_version(
            added_classes.absent
        ):
            raise InputError(
                f"{engine_title} has no architecture for {short_repr(class_name)}; "
                f"expected --engine {engine_record.name}=={added_classes.present} or later"
            )


def check_encoder(
    preset: Preset, engine_record: GgmlEngineRecord, engine_version: EngineVersion, encoder_file: str
) -> None:
    """Raises `InputError` for a model whose encoder llama.cpp cannot convert. encoder_file: the value of --mmproj.

    A file that exists is converted already.
    """
    if not engine_record.registered_encoders or Path(encoder_file).is_file() or not preset.model.towers:
        return
    vision_section = (preset.config or {}).get("vision_config")
    vision_classes = vision_section.get("architectures") if isinstance(vision_section, dict) else None
    class_names = vision_classes if isinstance(vision_classes, list) else architectures(preset)
    class_name = str(next(iter(class_names), ""))
    if class_name and _registered_name(preset, engine_record, class_name) not in engine_record.registered_encoders:
        raise InputError(
            f"--mmproj {short_repr(encoder_file)}: {engine_record.title} {engine_version.version} has no encoder for "
            f"{short_repr(class_name)} ({engine_record.classes_source}); remove it, or name a file that exists"
        )


def _registered_name(preset: Preset, engine_record: GgmlEngineRecord, class_name: str) -> str:
    """Returns the name under which llama.cpp's converter registers a class of a config."""
    return (
        class_name if preset.config is not None else engine_record.registered_class_by_name.get(class_name, class_name)
    )
