"""Hyper-connections: several residual streams that each sublayer reads, mixes and writes with learned weights.

Zhu 2024 (arXiv:2409.19606). Xie 2025 (arXiv:2512.24880, §4) constrain the mixing matrix to be doubly stochastic, as
DeepSeek-V4 does; Hy 4 has no mixing. transformers: models/deepseek_v4 (`DeepseekV4HyperConnection`,
`DeepseekV4HyperHead`), models/hy_v4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, FiniteNumber, ModelProperties, PartWitness, StreamCount
from ..norm import Norm, norm_reference
from ..residual_streams import CopiedStreams, copied_streams_class
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


STREAM_NORM = Norm(type="rmsnorm", weight=False, eps=1e-6)
"""The norm on all residual streams of a token together, before the projection to the mixing weights."""


READ_WEIGHTS = "read_weights"
"""The storage name of the weights with which the next sublayer reads the residual streams."""


class HyperLayer(PreNormLayer):
    """A layer whose sublayers read a weighted sum of several residual streams and write to all of them.

    A norm follows the weighted sum. The streams are mixed with each other before a sublayer's output is added to them.
    One projection of all streams of a token computes all weights.

    hc_mult: the number of streams.
    hc_sinkhorn_iters: the number of steps that make the mixing matrix doubly stochastic, 20 by default; None where the
        streams are not mixed.
    hc_magnitude: the largest factor on a sublayer's output, 2 by default.
    hc_eps: added to the weights, 1e-6 by default.
    delayed: whether a sublayer reads the streams with the weights of the sublayer before (class attribute).
    """

    formula_source: ClassVar[str] = "Xie et al. 2025, §4"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    can_run_alone: ClassVar[bool] = False
    delayed: ClassVar[bool] = False

    type: Literal["hyper"] = "hyper"
    hc_mult: StreamCount
    hc_sinkhorn_iters: int | None = Field(default=20, ge=1, le=1000, strict=True)
    hc_magnitude: FiniteNumber = Field(default=2.0, gt=0)
    hc_eps: FiniteNumber = Field(default=1e-6, ge=0)

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {**super().required_stack_fields(), "streams": {"type": self.type, "hc_mult": self.hc_mult}}

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        """Records the layer's operations. x: all residual streams."""
        for sublayer_name, component in (("self_attn", self.attention), ("mlp", self.feed_forward)):
            sublayer_input, output_weights, mixed_streams = self._connect_sublayer(
                recorder, f"{sublayer_name}_connection", x
            )
            recorder.hold(read=sublayer_input, written=output_weights, mixed=mixed_streams)
            sublayer_output = self._record_sublayer(recorder, sublayer_name, component, sublayer_input)
            recorder.hold(y=sublayer_output)
            x = recorder.add(recorder.mul(output_weights, sublayer_output, axes=x.axes), mixed_streams)
            recorder.hold(x=x)
        return x

    def _connect_sublayer(self, recorder: Flow, sublayer_name: str, x: Value) -> tuple[Value, Value, Value]:
        """Returns a sublayer's input, the weights that add its output to each stream, and the mixed streams."""
        stream_axis, hidden_axis = x.axes
        mixing_axes = () if self.hc_sinkhorn_iters is None else ((stream_axis, Axis("mixed", stream_axis.size)),)
        with recorder.scope(sublayer_name, kind="residual"):
            read_logits, write_logits, *mix_logits = _record_connection_weights(
                recorder, x, JoinedShapes(((stream_axis,), (stream_axis,), *mixing_axes))
            )
            recorder.hold(read=read_logits, written=write_logits)
            read_weights = recorder.plus(recorder.act(read_logits, "sigmoid"), self.hc_eps)
            if self.delayed:
                read_weights = recorder.delayed_weights(READ_WEIGHTS, read_weights, stream_axis, keeps_state=True)
            weighted_sum = recorder.sum(recorder.mul(read_weights, x, axes=x.axes), hidden_axis)
            output_weights = recorder.scale(recorder.act(write_logits, "sigmoid"), self.hc_magnitude)
            recorder.hold(summed=weighted_sum, strength=output_weights)
            if self.hc_sinkhorn_iters is None:
                return weighted_sum, recorder.plus(output_weights, self.hc_eps), x
            recorder.hold(raw=mix_logits[0])
            mix_matrix = recorder.plus(recorder.act(mix_logits[0], "softmax"), self.hc_eps)
            mix_matrix = recorder.sinkhorn(mix_matrix, self.hc_sinkhorn_iters, self.hc_eps)
            x = recorder.core(
                "mix", ops.ResidualStreamMix(stream_axis.size, hidden_axis.size, x.rows), mix_matrix, x, axes=x.axes
            )
            return weighted_sum, output_weights, x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return hyper_reference_classes()["layer"](self, model_properties)


class HyperStreams(CopiedStreams):
    """The streams of hyper-connections: copies of the embedding, summed after the last layer.

    hc_mult: the number of streams.
    merge: `weighted` for a sum with learned weights, the default; `mean` for the mean of all streams (GLM-5.3).
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "residual"

    type: Literal["hyper"] = "hyper"
    merge: Literal["weighted", "mean"] = "weighted"

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        if self.merge == "mean":
            return recorder.sum(x, x.axes[-1], is_mean=True)
        return recorder.part("hyper_streams", self, x)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Returns the weighted sum of the streams. x: all streams."""
        stream_axis, hidden_axis = x.axes
        (raw_weights,) = _record_connection_weights(recorder, x, JoinedShapes(((stream_axis,),)))
        recorder.hold(raw=raw_weights)
        stream_weights = recorder.plus(recorder.act(raw_weights, "sigmoid"), STREAM_NORM.eps)
        recorder.hold(weights=stream_weights)
        return recorder.sum(recorder.mul(stream_weights, x, axes=x.axes), hidden_axis)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return hyper_reference_classes()["streams"](self.hc_mult, model_properties.hidden_size, self.merge)


def _record_connection_weights(recorder: Flow, x: Value, output_axes: JoinedShapes) -> tuple[Value, ...]:
    """Records a projection of all streams, split into groups of weights that each have a scale and offsets."""
    raw_weights = recorder.linear("map", recorder.normalized(x, STREAM_NORM), output_axes)
    weight_parts = tuple(Value(x.rows, component) for component in output_axes.shapes)
    recorder.record(
        "core",
        "offsets",
        (raw_weights,),
        weight_parts,
        ops.ResidualStreamOffsets(output_axes.size, len(output_axes.shapes)),
    )
    return weight_parts


def hyper_example(**layer_fields: Any) -> HyperLayer:
    """Returns a small layer for the contract tests' examples. layer_fields: fields with other values."""
    return HyperLayer(**{**example_sublayers(), "hc_mult": 3, **layer_fields})


@cache
def hyper_reference_classes() -> dict[str, type[nn.Module]]:
    """Returns the reference classes of the layer, the streams, and a sublayer's connection."""
    import torch
    from torch import nn

    class WeightOffsets(nn.Module):
        """Applies a scale per group of a token's mixing weights, and an offset per weight."""

        def __init__(self, *part_sizes: int) -> None:
            super().__init__()
            self.parts = part_sizes
            self.base = nn.Parameter(torch.zeros(sum(part_sizes)))
            self.scale = nn.Parameter(torch.ones(len(part_sizes)))

        def forward(self, raw_weights: Tensor) -> tuple[Tensor, ...]:
            weight_parts, weight_offsets = raw_weights.split(self.parts, -1), self.base.split(self.parts)
            return tuple(
                weight_part * scale + offset
                for weight_part, scale, offset in zip(weight_parts, self.scale.unbind(), weight_offsets, strict=True)
            )

    def norm_without_weights(streams_width: int) -> nn.Module:
        """Builds the norm, without learned weights, over all streams of a token together."""
        return norm_reference(Norm(type="rmsnorm", weight=False, eps=1e-6), streams_width)

    class StreamMixing(nn.Module):
        """Mixes streams. mix_matrix: [.., in, out], streams: [.., in, hidden] → [.., out, hidden]."""

        def forward(self, mix_matrix: Tensor, streams: Tensor) -> Tensor:
            return mix_matrix.transpose(-1, -2) @ streams

    class HyperConnection(nn.Module):
        """Computes a sublayer's input and output weights. streams → (input, output weights, mixed streams)."""

        def __init__(self, spec: HyperLayer, hidden_size: int) -> None:
            super().__init__()
            self.spec, stream_count = spec, spec.hc_mult
            if spec.hc_sinkhorn_iters is None:
                part_sizes = [stream_count, stream_count]
            else:
                part_sizes = [stream_count, stream_count, stream_count * stream_count]
            self.stream_norm = norm_without_weights(stream_count * hidden_size)
            self.map = nn.Linear(stream_count * hidden_size, sum(part_sizes), bias=False)
            self.offsets = WeightOffsets(*part_sizes)
            self.mix = None if spec.hc_sinkhorn_iters is None else StreamMixing()

        def read_weights(self, new_weights: Tensor, pass_state: PassState) -> Tensor:
            """Returns the weights with which a sublayer reads the streams."""
            return new_weights

        def forward(self, streams: Tensor, pass_state: PassState) -> tuple[Tensor, Tensor, Tensor]:
            stream_count, eps = self.spec.hc_mult, self.spec.hc_eps
            read_logits, write_logits, *mix_logits = self.offsets(self.map(self.stream_norm(streams.flatten(2))))
            weighted_sum = (self.read_weights(read_logits.sigmoid() + eps, pass_state)[..., None] * streams).sum(2)
            write_weights = self.spec.hc_magnitude * write_logits.sigmoid()
            if self.mix is None or self.spec.hc_sinkhorn_iters is None:
                return weighted_sum, write_weights + eps, streams
            mix_matrix = mix_logits[0].unflatten(-1, (stream_count, stream_count)).softmax(-1) + eps
            mix_matrix = mix_matrix / (mix_matrix.sum(-2, keepdim=True) + eps)
            for _ in range(self.spec.hc_sinkhorn_iters - 1):
                mix_matrix = mix_matrix / (mix_matrix.sum(-1, keepdim=True) + eps)
                mix_matrix = mix_matrix / (mix_matrix.sum(-2, keepdim=True) + eps)
            return weighted_sum, write_weights, self.mix(mix_matrix, streams)

    class HyperLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs sublayers on weighted sums of streams. x: [batch, tokens, streams, hidden] → same shape."""

        connection = HyperConnection

        def __init__(self, spec: HyperLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            for sublayer_name in ("self_attn", "mlp"):
                self.add_module(f"{sublayer_name}_connection", self.connection(spec, model_properties.hidden_size))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for sublayer_name in ("self_attn", "mlp"):
                sublayer_input, output_weights, mixed_streams = self.get_submodule(f"{sublayer_name}_connection")(
                    x, pass_state
                )
                sublayer_output = self._sublayer_output(sublayer_name, sublayer_input, pass_state)
                x = output_weights[..., None] * sublayer_output[:, :, None] + mixed_streams
            return x

    class HyperHeadReference(nn.Module):
        def __init__(self, stream_count: int, hidden_size: int) -> None:
            super().__init__()
            self.stream_norm = norm_without_weights(stream_count * hidden_size)
            self.map = nn.Linear(stream_count * hidden_size, stream_count, bias=False)
            self.offsets = WeightOffsets(stream_count)

        def forward(self, streams: Tensor) -> Tensor:
            (raw_weights,) = self.offsets(self.map(self.stream_norm(streams.flatten(2))))
            stream_weights = raw_weights.sigmoid() + 1e-6
            return (stream_weights[..., None] * streams).sum(2)

    class HyperStreamsReference(copied_streams_class()):  # type: ignore[misc]
        """Copies one residual stream into n streams, and sums the n streams into one after the layers."""

        def __init__(self, stream_count: int, hidden_size: int, merge_kind: str) -> None:
            super().__init__(stream_count)
            self.hyper_streams = None if merge_kind == "mean" else HyperHeadReference(stream_count, hidden_size)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return x.mean(2) if self.hyper_streams is None else self.hyper_streams(x)

    return {"layer": HyperLayerReference, "streams": HyperStreamsReference, "connection": HyperConnection}
