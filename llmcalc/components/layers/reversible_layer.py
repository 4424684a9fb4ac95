"""Reversible layers: each sublayer reads one of two residual streams and adds its output to the other (Reformer).

Gomez et al. 2017 (arXiv:1707.04585), Kitaev et al. 2020 (arXiv:2001.04451, §3). Training computes each layer again
instead of keeping its activations. transformers: models/reformer (`ReformerLayer`, `_ReversibleFunction`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ...workload.derived_rows import RowsPaddedAboveMinimum
from ..base import ChunkSize, LayerProtocol, ModelProperties
from ..mixers.chunked_attention import ChunkedAttention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..residual_streams import ResidualStreams
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ReversibleStreams(ResidualStreams):
    """Two residual streams that start as the embedding; after the last layer they are concatenated and normalized.

    block: the number of tokens that a sequence is padded to a multiple of.
    least: the number of tokens up to which it is not padded.
    norm: the norm of both streams.
    """

    formula_source: ClassVar[str] = "Kitaev et al. 2020, §3"
    kind: ClassVar[str] = "norm"

    type: Literal["reversible"] = "reversible"
    block: ChunkSize
    least: ChunkSize
    norm: Norm

    @property
    def one_pass_model_name(self) -> str:
        return "a model of reversible layers"

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        if not all(isinstance(layer, ReversibleLayer) for layer in layers.values()):
            raise ValueError("streams: those of type 'reversible' stand where every layer is of type 'reversible'")

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        padded_x = recorder.resized(
            x, RowsPaddedAboveMinimum(source_rows=x.rows, block_rows=self.block, minimum_rows=self.least)
        )
        recorder.layer_memo["tokens"] = x.rows
        return recorder.cat(padded_x, padded_x, axes=(JoinedShapes((x.axes, x.axes)),))

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        return recorder.resized(recorder.part("reversible_norm", self.norm, x), recorder.layer_memo["tokens"])

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["streams"](self, model_properties.hidden_size)


class ReversibleLayer(PreNormLayer):
    """A reversible layer: adds attention(stream 2) to stream 1, then network(stream 1) to stream 2."""

    formula_source: ClassVar[str] = "Kitaev et al. 2020, §3"
    can_run_alone: ClassVar[bool] = False

    type: Literal["reversible"] = "reversible"
    attention: ChunkedAttention
    feed_forward: FeedForward

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {"streams": {"type": "reversible"}}

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        hidden_axis: Axis = recorder.layer_memo["hidden"][0]
        first_stream, second_stream = recorder.split(x, (hidden_axis,), (hidden_axis,))
        first_stream = recorder.add(
            first_stream, self._record_sublayer(recorder, "self_attn", self.attention, second_stream)
        )
        second_stream = recorder.add(
            second_stream, self._record_sublayer(recorder, "mlp", self.feed_forward, first_stream)
        )
        return recorder.cat(first_stream, second_stream, axes=x.axes)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="relu", up_bias=True, down_bias=True)
        attentions = ChunkedAttention.examples()
        return [cls(attention=attention, feed_forward=network, norm=Norm(type="layernorm")) for attention in attentions]


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    class ReversibleStreamsReference(nn.Module):
        """Pads and splits tokens into two residual streams, and merges the streams after the layers.

        [batch, tokens, hidden] → [batch, padded tokens, 2 · hidden] → [batch, tokens, 2 · hidden].
        """

        def __init__(self, spec: ReversibleStreams, hidden_size: int) -> None:
            super().__init__()
            self.block, self.least, self.tokens = spec.block, spec.least, 0
            self.reversible_norm = spec.norm.reference(ModelProperties(2 * hidden_size))

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            self.tokens = x.shape[1]
            padding_tokens = -x.shape[1] % self.block if x.shape[1] > self.least else 0
            return nn.functional.pad(x, (0, 0, 0, padding_tokens)).repeat(1, 1, 2)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            normed_x: Tensor = self.reversible_norm(x)[:, : self.tokens]
            return normed_x

    class ReversibleLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Updates each of two residual streams from the other stream. x: [batch, tokens, 2 · hidden] → same shape."""

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            first_stream, second_stream = x.chunk(2, -1)
            first_stream = first_stream + self._sublayer_output("self_attn", second_stream, pass_state)
            return torch.cat([first_stream, second_stream + self._sublayer_output("mlp", first_stream, pass_state)], -1)

    return {"streams": ReversibleStreamsReference, "layer": ReversibleLayerReference}
