"""Where facts are from, as data and as lines below a table: shared by the views of presets and hardware."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..record import Source
from .document import Linked


def source_data(sources: Sequence[Source]) -> list[dict[str, Any]]:
    """Sources as plain data, dates as text."""
    return [source.model_dump(mode="json") for source in sources]


def source_notes(sources: Sequence[Source], listed: bool = True) -> list[str]:
    """One line a source: what it gives, where it is, when it was looked at.

    listed: whether they are those of llmcalc's own presets, whose addresses are links. Those of a user's file are text.
    """
    note = Linked if listed else str
    return [
        note(
            f"source of {s.gives}: {s.url}"
            + (f" (checked {s.checked})" if s.checked else "")
            + (f", revision {s.revision}" if s.revision else "")
        )
        for s in sources
    ]
