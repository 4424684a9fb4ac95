from __future__ import annotations

SHAPES: dict[str, list[dict[str, object]]] = {}
"""Wrappers: their text models are in other files, their vision and audio encoders in
`tests/components/towers/tower_shapes.py`.
"""
