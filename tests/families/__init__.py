"""Small configs of every family, one file per adapter: every config in `SHAPES` is read, and also built by
transformers.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import import_module
from typing import Any

from llmcalc.sources.huggingface.registry import TYPES_BY_FILE


def shapes_of(kind: str) -> list[dict[str, Any]]:
    """Returns new copies of the small configs of a model type, with the transformers class that each is for."""
    shapes: list[dict[str, Any]] = json.loads(_text_of_shapes(kind))
    return shapes


@cache
def _text_of_shapes(kind: str) -> str:
    file = next(f for f, kinds in TYPES_BY_FILE.items() if kind in kinds)
    classes: dict[str, list[dict[str, Any]]] = import_module(f"{__name__}.{file}").SHAPES
    return json.dumps(
        [
            {"architectures": [cls], **shape}
            for cls, shapes in classes.items()
            for shape in shapes
            if shape["model_type"] == kind
        ]
    )
