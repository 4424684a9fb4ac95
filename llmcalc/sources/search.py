"""Finds model presets by a part of the name."""

from __future__ import annotations

from ..errors import InputError, suggest
from .names import normalized
from .presets import find_preset, load_preset, model_names, names_by_alias


def search_presets(texts: list[str]) -> tuple[list[str], bool]:
    """Returns the sorted names of matching presets, and whether each text was a full name or alias.

    A full name or alias matches only that preset. Any other text matches every preset with the text in its name, title
    or aliases, without case and punctuation. No text matches all presets.
    Raises `InputError` with the nearest names for a text without a match.
    """
    if not texts:
        return list(model_names()), False
    preset_names: set[str] = set()
    is_exact = True
    for text in texts:
        name = find_preset(text) if normalized(text) else None
        if name is not None:
            preset_names.add(name)
            continue
        is_exact = False
        matches = [
            preset_name
            for preset_name in model_names()
            if normalized(text) and normalized(text) in _all_spellings(preset_name)
        ]
        if not matches:
            suggestion = suggest(text, names_by_alias() | {name: name for name in model_names()})
            raise InputError(f"no preset has '{text}' in its name.{suggestion} (llmcalc presets lists all)")
        preset_names.update(matches)
    return sorted(preset_names), is_exact


def _all_spellings(preset_name: str) -> str:
    """Returns all names of a preset with separators, so that a search text cannot match across two names."""
    preset = load_preset(preset_name)
    return "\n".join(normalized(text) for text in (preset_name, preset.title, *preset.aliases))
