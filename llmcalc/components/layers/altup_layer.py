"""AltUp: several residual streams, where each layer computes on one stream and then corrects the other streams.

Baykal 2023 (arXiv:2301.13310). The layer is Gemma 3n's: AltUp with a low-rank path beside attention (LAuReL, Menghani
2024, arXiv:2411.07501) and a per-layer embedding. transformers: models/gemma3n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value, Weight
from ..base import TORCH_WITNESS, Component, LaurelRank, LayerProtocol, ModelProperties, PartWitness
from ..norm import Norm
from ..residual_streams import ResidualStreams
from ..runtime import PassState, vector_module
from .block import LayerSharing
from .per_layer_embeddings import PerLayerGate
from .whole_layer import WholeLayer, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


SOURCE = "Baykal et al. 2023, §3"


class AltUp(ResidualStreams):
    """AltUp's split of the embedding into residual streams, and the merge after the last layer.

    Below the layers, they are the embedding and projections of it. After the last layer, the first stream and
    projections of the others are averaged.

    altup_num_inputs: the number of streams.
    """

    formula_source: ClassVar[str] = SOURCE
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "streams"

    type: Literal["altup"] = "altup"
    altup_num_inputs: int = Field(ge=2, le=64, strict=True)

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        self._check_every_layer(layers, self.type, altup_num_inputs=self.altup_num_inputs)

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("streams_in", self, x)

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("streams_out", self, x, merge=True)

    def flow(self, recorder: Flow, x: Value, merge: bool = False) -> Value:
        """Records the split of the embedding into streams or, with `merge`, the merge after the last layer."""
        hidden_axis, other_stream_axis = x.axes[-1], Axis("streams", self.altup_num_inputs - 1)
        first_stream, other_inputs = (
            (recorder.take(x, hidden_axis), recorder.take(x, other_stream_axis, hidden_axis)) if merge else (x, x)
        )
        with recorder.function():
            first_rms = recorder.root_mean_square(first_stream)
            recorder.hold(length=first_rms)

            def project_stream(stream: Value) -> Value:
                """Returns a linear projection of a residual stream, rescaled to the magnitude of the first stream."""
                projected_stream = recorder.linear("", stream, hidden_axis)
                recorder.hold_outside(y=projected_stream)
                return recorder.div(
                    recorder.mul(projected_stream, first_rms), recorder.root_mean_square(projected_stream)
                )

            x = recorder.side_by_side(
                "projections",
                other_stream_axis,
                other_inputs,
                project_stream,
                first_value=first_stream,
                slices_input=merge,
            )
        return recorder.sum(x, hidden_axis, is_mean=True) if merge else x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["streams"](self.altup_num_inputs, model_properties.hidden_size)


class AltUpLayer(WholeLayer):
    """A layer that predicts all residual streams, computes on the first stream, and corrects the other streams.

    The sublayers' result corrects all streams. The layer's per-layer embedding is added to all streams but the first.

    altup_num_inputs: the number of streams.
    laurel_rank: the rank of the low-rank path beside attention.
    per_layer_input: how the layer uses its per-layer embedding.
    """

    formula_source: ClassVar[str] = "Gemma 3n 2025"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    can_run_alone: ClassVar[bool] = False

    type: Literal["altup"] = "altup"
    altup_num_inputs: int = Field(ge=2, le=64, strict=True)
    laurel_rank: LaurelRank
    per_layer_input: PerLayerGate
    norm_placement: Literal["sandwich"] = "sandwich"

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        required_fields = {"type": self.type, "altup_num_inputs": self.altup_num_inputs}
        return {
            **super().required_stack_fields(),
            "streams": required_fields,
            **self.per_layer_input.required_stack_fields(),
        }

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        """Records the layer's operations. x: all residual streams."""
        stream_axis, hidden_axis = x.axes
        router = Weight("router", (stream_axis,), (hidden_axis,))
        predicted_streams, router_output = self._predict_streams(recorder, x, router)
        active_stream = recorder.take(predicted_streams, hidden_axis)
        recorder.hold(predicted=predicted_streams)
        normed_stream = recorder.part("self_attn_pre_norm", self.norm, active_stream)
        recorder.hold(read=normed_stream)
        layer_output = self._sublayer_output(recorder, "self_attn", self.attention, normed_stream)
        layer_output = recorder.scale(
            recorder.add(
                recorder.add(active_stream, layer_output), self._add_low_rank_projection(recorder, normed_stream)
            ),
            2**-0.5,
        )
        recorder.hold(y=layer_output)
        layer_output = recorder.add(
            layer_output,
            self._sublayer_output(
                recorder, "mlp", self.feed_forward, recorder.part("mlp_pre_norm", self.norm, layer_output)
            ),
        )
        recorder.hold(y=layer_output)
        corrected_streams, first_stream = self._correct_streams(
            recorder, predicted_streams, layer_output, router, router_output
        )
        recorder.hold(corrected=corrected_streams, first=first_stream)
        other_streams = recorder.take(corrected_streams, Axis("streams", self.altup_num_inputs - 1), hidden_axis)
        updated_streams = recorder.add(
            other_streams, recorder.part("per_layer_input", self.per_layer_input, first_stream, norm=self.norm)
        )
        recorder.hold(fed=updated_streams)
        return recorder.cat(
            recorder.take(corrected_streams, Axis("streams", 1), hidden_axis), updated_streams, axes=x.axes
        )

    def _sublayer_output(self, recorder: Flow, sublayer_name: str, component: Component, x: Value) -> Value:
        """Returns the normalized output of attention or of the feed-forward network."""
        with recorder.function():
            recorder.hold(x=x)
            return recorder.part(f"{sublayer_name}_post_norm", self.norm, recorder.part(sublayer_name, component, x))

    def _predict_streams(self, recorder: Flow, x: Value, router: Weight) -> tuple[Value, Value]:
        """Predicts every stream: adds a mixture of all streams, with weights computed from the first stream.

        Returns all streams and the output of the router's norm.
        """
        stream_axis, hidden_axis = x.axes
        with recorder.scope("predict", kind="streams", source=SOURCE):
            normed_stream = recorder.part("router_norm", self.norm, recorder.take(x, hidden_axis))
            mixing_weights = self._mixing_weights(
                recorder, normed_stream, router, stream_axis, Axis("mixed", stream_axis.size)
            )
            recorder.hold(weights=mixing_weights)
            mix_op = ops.Product(hidden_axis.size, stream_axis.size, stream_axis.size, x.rows)
            return recorder.add(x, recorder.core("mix", mix_op, mixing_weights, x, axes=x.axes)), normed_stream

    def _mixing_weights(
        self, recorder: Flow, normed_x: Value, router: Weight, *output_axes: Axis | JoinedShapes
    ) -> Value:
        """Returns the stream mixing weights, computed from the norm of one stream."""
        hidden_axis = normed_x.axes[-1]
        router_output = recorder.linear(
            "router", recorder.scale(normed_x, 1 / hidden_axis.size), output_axes[0], weight=router
        )
        return recorder.linear("coefficients", recorder.act(router_output, "tanh"), *output_axes)

    def _add_low_rank_projection(self, recorder: Flow, x: Value) -> Value:
        """Adds to x a normalized low-rank projection of x (LAuReL)."""
        with recorder.scope("laurel", kind="attention", source="Menghani et al. 2024"):
            low_rank_output = recorder.linear(
                "right", recorder.linear("left", x, Axis("rank", self.laurel_rank)), *x.axes
            )
            return recorder.add(x, recorder.part("norm", self.norm, low_rank_output))

    def _correct_streams(
        self, recorder: Flow, predicted_streams: Value, sublayer_output: Value, router: Weight, router_output: Value
    ) -> tuple[Value, Value]:
        """Corrects all streams by the sublayers' result, and returns the streams and the scaled first stream.

        sublayer_output: the output of the sublayers, whose input was the first stream.
        router, router_output: the router of `predict` and the output of its norm, both of which are reused.
        """
        stream_axis, hidden_axis = predicted_streams.axes
        with recorder.scope("correct", kind="streams", source=SOURCE):
            normed_output = recorder.normalized(sublayer_output, self.norm, weight_owner=router_output)
            mixing_weights = recorder.plus(self._mixing_weights(recorder, normed_output, router, stream_axis), 1.0)
            recorder.hold(shares=mixing_weights)
            stream_change = recorder.mul(
                mixing_weights,
                recorder.sub(sublayer_output, recorder.take(predicted_streams, hidden_axis)),
                axes=predicted_streams.axes,
            )
            corrected_streams = recorder.add(predicted_streams, stream_change)
            return corrected_streams, recorder.mul(
                recorder.take(corrected_streams, hidden_axis), recorder.vector("scale", hidden_axis)
            )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    def root_mean_square(x: Tensor) -> Tensor:
        return x.float().square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt().to(x.dtype)

    class StreamProjections(nn.Module):
        def __init__(self, stream_count: int, hidden_size: int) -> None:
            super().__init__()
            self.projections = nn.ModuleList(
                nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(stream_count - 1)
            )

        def _project_streams(self, first_stream: Tensor, stream_inputs: Sequence[Tensor]) -> Tensor:
            """Stacks the first stream and rescaled projections of the other streams: [.., streams, hidden]."""
            first_rms, streams = root_mean_square(first_stream), [first_stream]
            for projection, x in zip(self.projections, stream_inputs, strict=True):
                projected_x = projection(x)
                streams.append(projected_x * first_rms / root_mean_square(projected_x))
            return torch.stack(streams, -2)

    class StreamSplit(StreamProjections):
        """Splits one stream into several. [batch, tokens, hidden] → [batch, tokens, streams, hidden]."""

        def forward(self, x: Tensor) -> Tensor:
            return self._project_streams(x, [x] * len(self.projections))

    class StreamMerge(StreamProjections):
        """Merges the streams into one. [batch, tokens, streams, hidden] → [batch, tokens, hidden]."""

        def forward(self, x: Tensor) -> Tensor:
            return self._project_streams(x[:, :, 0], x[:, :, 1:].unbind(2)).mean(2)

    class AltUpStreamsReference(nn.Module):
        def __init__(self, stream_count: int, hidden_size: int) -> None:
            super().__init__()
            self.streams_in = StreamSplit(stream_count, hidden_size)
            self.streams_out = StreamMerge(stream_count, hidden_size)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self.streams_in(x)

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self.streams_out(x)

    class StreamMixing(nn.Module):
        def forward(self, coefficients: Tensor, x: Tensor) -> Tensor:
            """Mixes streams. coefficients: [batch, tokens, streams, streams], x: [batch, tokens, streams, hidden]."""
            return coefficients @ x

    class StreamPrediction(nn.Module):
        def __init__(self, stream_count: int, norm: Norm, model_properties: ModelProperties) -> None:
            super().__init__()
            self.streams, self.router_norm = stream_count, norm.reference(model_properties)
            self.router = nn.Linear(model_properties.hidden_size, stream_count, bias=False)
            self.coefficients = nn.Linear(stream_count, stream_count * stream_count, bias=False)
            self.mix = StreamMixing()

        def router_output(self, x: Tensor, router: nn.Module) -> Tensor:
            return torch.tanh(router(self.router_norm(x) / x.shape[-1]))

        def forward(self, x: Tensor) -> Tensor:
            coefficients = self.coefficients(self.router_output(x[:, :, 0], self.router))
            return x + self.mix(coefficients.unflatten(-1, (self.streams, self.streams)), x)

    class StreamCorrection(nn.Module):
        def __init__(self, stream_count: int, hidden_size: int, router: nn.Linear) -> None:
            super().__init__()
            self.router = nn.Linear(hidden_size, stream_count, bias=False)
            self.router.weight = router.weight
            self.coefficients = nn.Linear(stream_count, stream_count, bias=False)
            self.scale = vector_module(torch.ones(hidden_size))

        def forward(
            self, predicted_streams: Tensor, active_stream: Tensor, stream_prediction: StreamPrediction
        ) -> tuple[Tensor, Tensor]:
            """Corrects the predicted streams, and returns the streams and the scaled first stream."""
            corrections = self.coefficients(stream_prediction.router_output(active_stream, self.router)) + 1
            corrected_streams = (
                predicted_streams + corrections[..., None] * (active_stream - predicted_streams[:, :, 0])[:, :, None]
            )
            return corrected_streams, corrected_streams[:, :, 0] * self.scale.weight

    class LaurelProjection(nn.Module):
        def __init__(self, rank: int, norm: Norm, model_properties: ModelProperties) -> None:
            super().__init__()
            self.left = nn.Linear(model_properties.hidden_size, rank, bias=False)
            self.right = nn.Linear(rank, model_properties.hidden_size, bias=False)
            self.norm = norm.reference(model_properties)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.norm(self.right(self.left(x)))

    class AltUpLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Predicts all streams, runs the sublayers, corrects. x: [batch, tokens, streams, hidden] → same shape."""

        def __init__(self, spec: AltUpLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.predict = StreamPrediction(spec.altup_num_inputs, spec.norm, model_properties)
            self.laurel = LaurelProjection(spec.laurel_rank, spec.norm, model_properties)
            for sublayer_name in ("self_attn", "mlp"):
                self.add_module(f"{sublayer_name}_post_norm", spec.norm.reference(model_properties))
            self.correct = StreamCorrection(spec.altup_num_inputs, model_properties.hidden_size, self.predict.router)
            self.per_layer_input = spec.per_layer_input.reference(model_properties, spec.norm)

        def _normed_output(self, sublayer_name: str, x: Tensor, pass_state: PassState) -> Tensor:
            return self.get_submodule(f"{sublayer_name}_post_norm")(self.get_submodule(sublayer_name)(x, pass_state))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            predicted_streams = self.predict(x)
            active_stream = predicted_streams[:, :, 0]
            normed_stream = self.self_attn_pre_norm(active_stream)
            layer_output = (
                active_stream + self._normed_output("self_attn", normed_stream, pass_state) + self.laurel(normed_stream)
            ) * 2**-0.5
            layer_output = layer_output + self._normed_output("mlp", self.mlp_pre_norm(layer_output), pass_state)
            corrected_streams, first_stream = self.correct(predicted_streams, layer_output, self.predict)
            streams_with_embedding = (
                corrected_streams[:, :, 1:] + self.per_layer_input(first_stream, pass_state)[:, :, None]
            )
            return torch.cat([corrected_streams[:, :, :1], streams_with_embedding], 2)

    return {"streams": AltUpStreamsReference, "layer": AltUpLayerReference}
