"""The defaults of configuration classes in `transformers`, for fields that a config leaves out."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any


@cache
def _defaults_by_type() -> dict[str, dict[str, Any]]:
    """Returns the defaults of every configuration class in `transformers`, from a generated file."""
    defaults: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("defaults.json").read_text())
    return defaults


def class_defaults(model_type: str) -> dict[str, Any]:
    """Returns field → default of the configuration class of a model or an encoder; empty for a type without a class."""
    return _defaults_by_type().get(model_type, {})


def class_fields(model_type: str) -> frozenset[str]:
    """Returns the field names of a model type's configuration class, without sections for other models.

    Sections with the configuration of another part, which may be an encoder, are left out.
    """
    return frozenset(field_name for field_name in class_defaults(model_type) if not field_name.endswith("_config"))
