from __future__ import annotations

SHAPES: dict[str, list[dict[str, object]]] = {}
"""Wrappers: their text models are other families', their towers in `tests/components/towers/tower_shapes.py`."""
