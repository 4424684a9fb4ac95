"""The interface of components that split the residual stream into several streams and merge them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from ..flow.record import Flow
from ..flow.value import Value
from .base import LayerParts, StackPart


class ResidualStreams(StackPart):
    """A component that turns the token embeddings into several residual streams and merges them after the last layer.

    Its reference has two methods for tensors, `split_streams` and `merge_streams`, which match `record_split` and
    `record_merge`. Its children are registered as the stack's own.
    """

    noun: ClassVar[str] = "streams"

    @property
    def from_target(self) -> bool:
        """Whether the layers only read a target model's results: its embedding, hidden states, keys and values."""
        return False

    def _check_every_layer(self, layers: Mapping[str, LayerParts], stream_type: str, **count: int) -> None:
        """Raises `ValueError` if a layer is not of the streams' type with their number. count: its field and value."""
        if any(layer.requires().get("streams") != {"type": stream_type, **count} for layer in layers.values()):
            raise ValueError(
                f"streams: those of type '{stream_type}' stand where every layer is of type '{stream_type}' with their "
                f"{', '.join(count)}, and nowhere else"
            )

    def record_split(self, recorder: Flow, x: Value) -> Value:
        """Records the split of one residual stream into several. x: the first layer's input without streams."""
        raise TypeError(f"{type(self).__name__} has no streams to split into")

    def record_merge(self, recorder: Flow, x: Value) -> Value:
        """Records the merge of all streams into one residual stream. x: all streams after the last layer."""
        raise TypeError(f"{type(self).__name__} has no streams to merge")
