"""The model presets that come with llmcalc: one TOML file each, found by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from .files import parse_toml, read_text, validate
from .names import normalized, normalized_with_points
from .preset import Preset


@cache
def presets_dir() -> Path:
    """The folder `presets/`: inside the package if installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "presets"
    return inside if inside.is_dir() else package.parent / "presets"


@cache
def model_names() -> tuple[str, ...]:
    """The name of every model preset, sorted."""
    return tuple(sorted(p.stem for p in (presets_dir() / "models").glob("*.toml")))


@cache
def _text(name: str) -> str:
    """Returns the text of a preset's file; cached, because it does not change during a run."""
    return read_text(presets_dir() / "models" / f"{name}.toml")


def read_preset(name: str) -> dict[str, Any]:
    """Reads the description in the preset file of exactly this name; error messages use the name."""
    return parse_toml(_text(name), name)


@cache
def load_preset(name: str) -> Preset:
    """Loads the preset with exactly this file name."""
    return validate(Preset, {**read_preset(name), "name": name}, name)


@cache
def find_preset(wanted: str) -> str | None:
    """Returns the name of the preset with this name or alias, without case and punctuation.

    A match that keeps decimal points is preferred.
    """
    if not normalized(wanted):
        return None
    for form in (normalized_with_points, normalized):
        key = form(wanted)
        preset = next((name for name in model_names() if form(name) == key), None) or _with_alias(key, form)
        if preset is not None:
            return preset
    return None


def _with_alias(alias: str, form: Callable[[str], str]) -> str | None:
    """Returns the preset with this alias. Only files that contain it are parsed, because there are hundreds.

    form: `normalized_with_points` or `normalized`, the form in which aliases are compared.
    """
    mentioned = re.compile(r"[^a-z0-9/+\"]*".join(map(re.escape, alias.replace(".", ""))))
    for name in model_names():
        if mentioned.search(_text(name).lower()) and alias in map(form, read_preset(name).get("aliases", ())):
            return name
    return None


@cache
def aliases() -> dict[str, str]:
    """Returns normalized alias → preset's name. It reads all presets, so it is used for suggestions only."""
    by_alias: dict[str, str] = {}
    for name in model_names():
        for alias in read_preset(name).get("aliases", ()):
            by_alias.setdefault(normalized(alias), name)
    return by_alias
