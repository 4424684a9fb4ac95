"""Small configs of every family, one file per adapter: every config in `SHAPES` is read, and also built by
transformers.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from llmcalc.sources.huggingface.registry import TYPES_BY_FILE


def shapes_of(kind: str) -> list[dict[str, Any]]:
    """Returns new copies of the small configs of a model type, with the transformers class that each is for."""
    file = next(f for f, kinds in TYPES_BY_FILE.items() if kind in kinds)
    classes: dict[str, list[dict[str, Any]]] = import_module(f"{__name__}.{file}").SHAPES
    return [
        json.loads(json.dumps({"architectures": [cls], **shape}))
        for cls, shapes in classes.items()
        for shape in shapes
        if shape["model_type"] == kind
    ]
