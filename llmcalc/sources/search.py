"""Finding model presets by a part of their name."""

from __future__ import annotations

from ..errors import InputError, suggest
from .names import plain
from .presets import aliases, find_preset, load_preset, model_names


def search_presets(wanted: list[str]) -> tuple[list[str], bool]:
    """(names of the presets that are meant, sorted; whether each was called by its full name or alias).

    A full name or alias means that preset alone; any other text means every preset with it in its name, title or
    aliases, without regard to case and punctuation. Nothing means all.

    Raises `InputError` with the nearest names for a text that is in none.
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
    """Everything the preset is called, one after the other, so that no text runs across two of them."""
    preset = load_preset(name)
    return "\n".join(plain(text) for text in (name, preset.title, *preset.aliases))
