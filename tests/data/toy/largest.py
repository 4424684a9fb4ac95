"""A toy cost: the number of parameters of a model's largest tensor."""

from __future__ import annotations

from ..algebra import Number
from ..model import ModelSpec


def largest(spec: ModelSpec) -> Number:
    """The number of elements of the largest trained tensor."""
    uses = (place.counted_op for place in spec.tree().walk())
    return max((tensor.size for use in uses if use is not None for tensor in use.tensors()), default=0)
