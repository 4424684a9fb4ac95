"""Finds model presets by a part of their name."""

from __future__ import annotations

from ..errors import InputError, suggest
from .names import plain
from .presets import aliases, find_preset, load_preset, model_names


def search_presets(wanted: list[str]) -> tuple[list[str], bool]:
    """Returns (names of the matching presets, sorted; whether each text was a full name or alias).

    A full name or alias matches only that preset. Any other text matches every preset with the text in its name, title
    or aliases, without case and punctuation. No text matches all presets.
    Raises `InputError` with the nearest names for a text without a match.
    """
    if not wanted:
        return list(model_names()), False
    found: set[str] = set()
    exact = True
    for text in wanted:
        name = find_preset(text) if plain(text) else None
        if name is not None:
            found.add(name)
            continue
        exact = False
        matches = [n for n in model_names() if plain(text) and plain(text) in _spellings(n)]
        if not matches:
            near = suggest(text, aliases() | {name: name for name in model_names()})
            raise InputError(f"no preset has '{text}' in its name.{near} (llmcalc presets lists all)")
        found.update(matches)
    return sorted(found), exact


def _spellings(name: str) -> str:
    """All names of a preset, separated so that a text cannot match across two of them."""
    preset = load_preset(name)
    return "\n".join(plain(text) for text in (name, preset.title, *preset.aliases))
