"""The distinct layers of a model."""

from __future__ import annotations

from ..algebra import is_zero
from ..components.layers.block import Layer
from ..model import ModelSpec


def distinct_layers(spec: ModelSpec) -> list[Layer]:
    """Returns each distinct layer of a model once, in execution order."""
    return [block for _, stack in spec.stacks() for _, block, count, _ in stack.layer_groups() if not is_zero(count)]
