"""Finds model presets by a part of the name."""

from __future__ import annotations

from ..errors import InputError, suggest
from .presets import checkpoint_of_tag, find_preset, is_library_tag, model_names, names_by_alias, title_and_aliases
from .target_names import normalized


def search_presets(search_texts: list[str]) -> tuple[list[str], bool]:
    """Returns the sorted names of matching presets, and whether each text was a full name or alias.

    A full name or alias matches only that preset. Any other text matches every preset with the text in its name, title
    or aliases, without case and punctuation. No text matches all presets.
    Raises `InputError` with the nearest names for a text without a match.
    """
    if not search_texts:
        return list(model_names()), False
    preset_names: set[str] = set()
    is_exact = True
    for search_text in search_texts:
        matching_name = None
        if normalized(search_text) and not _is_series(search_text):
            matching_name = find_preset(search_text)
            if matching_name is None and (tagged_checkpoint := checkpoint_of_tag(search_text)):
                matching_name = tagged_checkpoint[0].name
        if matching_name is not None:
            preset_names.add(matching_name)
            continue
        is_exact = False
        matching_presets = [
            preset_name
            for preset_name in model_names()
            if normalized(search_text) and normalized(search_text) in _all_spellings(preset_name)
        ]
        if not matching_presets:
            suggestion = suggest(search_text, names_by_alias() | {name: name for name in model_names()})
            raise InputError(f"no preset has '{search_text}' in its name.{suggestion} (llmcalc presets lists all)")
        preset_names.update(matching_presets)
    return sorted(preset_names), is_exact


def _is_series(search_text: str) -> bool:
    """Whether a text names a series of models in Ollama's library, such as `gpt-oss`, and is no preset's alias."""
    is_library_name = ":" not in search_text and is_library_tag(search_text)
    return is_library_name and normalized(search_text) not in names_by_alias()


def _all_spellings(preset_name: str) -> str:
    """Returns all names of a preset as one text with separators, so that no search text matches across two names."""
    title, aliases = title_and_aliases(preset_name)
    return "\n".join(map(normalized, (preset_name, title, *aliases)))
