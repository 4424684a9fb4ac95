"""Small configs of every family, one file for each adapter:
what `SHAPES` says is read, and built by transformers too.
"""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

from llmcalc.sources.huggingface.registry import FILES


def shapes_of(kind: str) -> list[dict[str, Any]]:
    """The small configs of a model type, each the caller's own, with the class of transformers that it is for."""
    file = next(f for f, kinds in FILES.items() if kind in kinds)
    classes: dict[str, list[dict[str, Any]]] = import_module(f"{__name__}.{file}").SHAPES
    return [
        json.loads(json.dumps({"architectures": [cls], **shape}))
        for cls, shapes in classes.items()
        for shape in shapes
        if shape["model_type"] == kind
    ]
