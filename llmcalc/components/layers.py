"""Every kind of layer that a stack can be made of. A new kind is its file and its line here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

from .base import Part
from .block import Block, Layer
from .choice import PartChoice

LAYERS = PartChoice(
    "block",
    {
        "block": "block:Block",
        "hyper": "hyper:HyperLayer",
        "hybrid": "hybrid:HybridBlock",
        "zamba": "zamba:ZambaLayer",
        "gemma4": "gemma4_layer:Gemma4Layer",
        "altup": "altup:AltUpLayer",
        "shortcut": "shortcut:ShortcutLayer",
        "gated_norm": "gated_norm:GatedNormLayer",
    },
)
"""Contract tests run over these."""

if TYPE_CHECKING:
    from .altup import AltUpLayer
    from .gated_norm import GatedNormLayer
    from .gemma4_layer import Gemma4Layer
    from .hybrid import HybridBlock
    from .hyper import HyperLayer
    from .shortcut import ShortcutLayer
    from .zamba import ZambaLayer

    AnyLayer: TypeAlias = (
        Block | HyperLayer | HybridBlock | ZambaLayer | Gemma4Layer | AltUpLayer | ShortcutLayer | GatedNormLayer
    )
else:
    AnyLayer = Annotated[Part, LAYERS]

__all__ = ["LAYERS", "AnyLayer", "Block", "Layer"]
