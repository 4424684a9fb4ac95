"""Several residual streams in place of one: what a stack does below its layers and above them."""

from __future__ import annotations

from ..flow.record import Flow
from ..flow.value import Value
from .base import StackPart


class ResidualStreams(StackPart):
    """A part that makes several residual streams of the embedded tokens, and one of them after the last layer.

    Its reference has two methods, `to_streams` and `to_one`, which map tensors as `widened` and `narrowed` map values;
    the stack holds its children as its own.
    """

    def widened(self, f: Flow, x: Value) -> Value:
        """x: what the first layer would read. All streams."""
        raise TypeError(f"{type(self).__name__} widens nothing")

    def narrowed(self, f: Flow, x: Value) -> Value:
        """x: all streams after the last layer. One of them."""
        raise TypeError(f"{type(self).__name__} narrows nothing")
