"""Delayed hyper-connections: a sublayer reads the streams with the weights that the previous sublayer computed.

The first sublayer reads the first stream alone; the last one's weights make the output of the stack. Before its
sublayers a layer may add embeddings of n-grams. DeepSeek-V4.1: vLLM, models/deepseek_v41; mlx-vlm, models/deepseek_v41.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, ModelProperties, PartWitness
from ..mixers.shared_entries import SOURCE
from ..part_choice import component_type
from ..residual_streams import CopiedStreams, copied_streams_class
from ..runtime import PassState
from .block import LayerSharing
from .hyper_layer import READ_WEIGHTS, HyperLayer, hyper_reference_classes
from .whole_layer import example_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..ngram_input import NgramInput
else:
    NgramInput = component_type("ngram_input:NgramInput")


class DelayedHyperLayer(HyperLayer):
    """A hyper-connection layer whose sublayers read the streams with the previous sublayer's weights.

    ngram_input: the embeddings of n-grams that are added to all streams first; none by default.
    """

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    delayed: ClassVar[bool] = True

    type: Literal["delayed_hyper"] = "delayed_hyper"  # type: ignore[assignment]
    ngram_input: NgramInput | None = None

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        """Records the layer's operations. x: all residual streams."""
        if self.ngram_input is not None:
            x = recorder.add(x, recorder.part("ngram_input", self.ngram_input, x))
            recorder.hold(x=x)
        return super().flow(recorder, x, layer_sharing)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)


class DelayedHyperStreams(CopiedStreams):
    """The residual streams: copies of the embedding, summed at the end with the last sublayer's weights.

    hc_mult: the number of streams.
    """

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "residual"

    type: Literal["delayed_hyper"] = "delayed_hyper"

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        stream_axis, hidden_axis = x.axes
        stream_weights = recorder.delayed_weights(READ_WEIGHTS, x, stream_axis)
        return recorder.sum(recorder.mul(stream_weights, x, axes=x.axes), hidden_axis)

    def flow(self, recorder: Flow, x: Value) -> Value:
        return self.record_stream_merge(recorder, x)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["streams"](self.hc_mult)


def delayed_hyper_example(**layer_fields: Any) -> DelayedHyperLayer:
    """Returns a small layer for the contract tests' examples. layer_fields: fields with other values."""
    return DelayedHyperLayer(**{**example_sublayers(), "hc_mult": 3, **layer_fields})


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch

    class DelayedConnection(hyper_reference_classes()["connection"]):  # type: ignore[misc]
        """The connection of a sublayer that reads the streams with the previous sublayer's weights."""

        def read_weights(self, new_weights: Tensor, pass_state: PassState) -> Tensor:
            shared_values, stream_count = pass_state.shared_values, new_weights.shape[-1]
            if "read weights" not in shared_values:  # the first sublayer reads the first stream
                first_stream = torch.eye(stream_count, dtype=new_weights.dtype, device=new_weights.device)[0]
                shared_values["read weights"] = first_stream.expand(*new_weights.shape)
            stream_weights: Tensor = shared_values["read weights"]
            shared_values["read weights"] = new_weights
            return stream_weights

    class DelayedHyperLayerReference(hyper_reference_classes()["layer"]):  # type: ignore[misc]
        """Runs sublayers between delayed hyper-connections. x: [batch, tokens, streams, hidden] → same shape."""

        connection = DelayedConnection

        def __init__(self, spec: DelayedHyperLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.ngram_input = None if spec.ngram_input is None else spec.ngram_input.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            return super().forward(x if self.ngram_input is None else x + self.ngram_input(x, pass_state), pass_state)

    class DelayedHyperStreamsReference(copied_streams_class()):  # type: ignore[misc]
        """Copies one residual stream into n streams, and merges them with the last sublayer's weights."""

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            stream_weights: Tensor = pass_state.shared_values["read weights"]
            return (stream_weights[..., None] * x).sum(2)

    return {"layer": DelayedHyperLayerReference, "streams": DelayedHyperStreamsReference}
