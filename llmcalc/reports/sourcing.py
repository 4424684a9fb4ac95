"""Sources of published figures as data and as notes, for the reports of presets and accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..record import FigureSource
from .document import LinkedNote


def source_data(sources: Sequence[FigureSource]) -> list[dict[str, Any]]:
    """Returns sources as plain data, with dates as text."""
    return [source.model_dump(mode="json") for source in sources]


def source_notes(sources: Sequence[FigureSource], lists_facts: bool = True) -> list[str]:
    """Returns one note per source: the stated figures, the address, and the access date.

    lists_facts: whether the sources are llmcalc's own, whose addresses become links; those of a user's file stay text.
    """
    note = LinkedNote if lists_facts else str
    return [
        note(
            f"source of {source.gives}: {source.url}"
            + (f" (checked {source.checked})" if source.checked else "")
            + (f", revision {source.revision}" if source.revision else "")
        )
        for source in sources
    ]
