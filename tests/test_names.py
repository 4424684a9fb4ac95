"""The package's identifiers: a vague one (`one`, `found`, `told`, …) may not come back where it was replaced.

`python -m tests.names --count` prints the numbers of today; a change that has fewer lowers them here.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.names import vague_counts

MOST = json.loads((Path(__file__).parent / "data" / "vague_names.json").read_text("utf-8"))
"""Room → how many vague identifiers it may have."""


def test_no_room_has_more_vague_identifiers() -> None:
    counts = vague_counts()
    more = {room: (count, MOST.get(room, 0)) for room, count in counts.items() if count > MOST.get(room, 0)}
    assert not more, "name the thing: layer, rank, candidate, result, … (docs/ARCHITECTURE.md, glossary)"


def test_the_limits_are_those_of_today() -> None:
    """A limit far above its room's count would let a hundred of them in."""
    counts = vague_counts()
    assert all(limit <= 1.1 * counts.get(room, 0) + 5 for room, limit in MOST.items())
