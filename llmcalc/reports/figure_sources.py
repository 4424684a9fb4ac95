"""Sources of published figures as data and as notes, for the reports of presets and accelerators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..record import FigureSource
from .document import LinkedNote


def source_data(figure_sources: Sequence[FigureSource]) -> list[dict[str, Any]]:
    """Returns the sources of published figures as plain data, with dates as text."""
    return [figure_source.model_dump(mode="json") for figure_source in figure_sources]


def source_notes(figure_sources: Sequence[FigureSource], with_links: bool = True) -> list[str]:
    """Returns one note per source: the stated figures, the address, and the access date.

    with_links: whether the sources are llmcalc's own, whose addresses become links; those of a user's file stay text.
    """
    note_class = LinkedNote if with_links else str
    return [
        note_class(
            f"source of {figure_source.gives}: {figure_source.url}"
            + (f" (checked {figure_source.checked})" if figure_source.checked else "")
            + (f", revision {figure_source.revision}" if figure_source.revision else "")
        )
        for figure_source in figure_sources
    ]
