"""The interface of components that split the residual stream into several streams and merge them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ..flow.axis import Axis
from ..flow.record import Flow
from ..flow.value import Value
from .base import LayerProtocol, StackPart, StreamCount
from .runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class ResidualStreams(StackPart):
    """A component that splits token embeddings into several residual streams, and merges them after the last layer.

    Its reference has two methods for tensors, `split_streams` and `merge_streams`, which match `record_stream_split`
    and `record_stream_merge`. Its children are registered as the stack's own.
    """

    noun: ClassVar[str] = "streams"

    @property
    def from_target(self) -> bool:
        """Whether the layers run on a target model's embeddings, hidden states, keys and values (a draft model)."""
        return False

    @property
    def starts_without_embedding(self) -> bool:
        """Whether the model has no token embedding, because none of its layers reads the tokens."""
        return False

    @property
    def one_pass_model_name(self) -> str:
        """The model's name in errors if its streams need the whole sequence in one pass; otherwise empty."""
        return ""

    def embedding_width(self) -> int | None:
        """The width of embeddings and outputs if split and merge of the streams change the width; otherwise None."""
        return None

    def _check_every_layer(self, layers: Mapping[str, LayerProtocol], stream_type: str, **stream_counts: int) -> None:
        """Raises `ValueError` unless all layers require streams of this type.

        stream_counts: the field of their number.
        """
        if any(
            layer.required_stack_fields().get("streams") != {"type": stream_type, **stream_counts}
            for layer in layers.values()
        ):
            raise ValueError(
                f"streams: those of type '{stream_type}' stand where every layer is of type '{stream_type}' with their "
                f"{', '.join(stream_counts)}, and nowhere else"
            )

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        """Records the operations that split one residual stream into several. x: the input of the first layer."""
        raise TypeError(f"{type(self).__name__} has no streams to split into")

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        """Records the operations that merge all residual streams into one. x: the output of the last layer."""
        return x


class CopiedStreams(ResidualStreams):
    """Residual streams that start as copies of the embedding.

    hc_mult: the number of streams.
    """

    hc_mult: StreamCount

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        self._check_every_layer(layers, type(self).model_fields["type"].default, hc_mult=self.hc_mult)

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return recorder.copies(x, Axis("streams", self.hc_mult))


@cache
def copied_streams_class() -> type[nn.Module]:
    from torch import nn

    class CopiedStreamsReference(nn.Module):
        """Copies one residual stream into [batch, tokens, streams, hidden]. A subclass merges the streams."""

        def __init__(self, stream_count: int) -> None:
            super().__init__()
            self.streams = stream_count

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x[:, :, None].expand(-1, -1, self.streams, -1)

    return CopiedStreamsReference
