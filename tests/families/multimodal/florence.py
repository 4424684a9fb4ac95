from __future__ import annotations

SHAPES: dict[str, list[dict[str, object]]] = {}
"""Its text model is in another file."""
