"""AltUp: several residual streams; each layer computes on one stream and corrects the other streams.

Baykal 2023 (arXiv:2301.13310). The layer is Gemma 3n's: AltUp with a low-rank path beside attention (LAuReL, Menghani
2024, arXiv:2411.07501) and a per-layer embedding. transformers: models/gemma3n.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ... import ops
from ...flow.axis import Axis, Beside
from ...flow.record import Flow
from ...flow.value import Value, Weight
from ..base import BY_TORCH, Component, Context, LaurelRank, LayerParts, PartWitness
from ..norm import Norm
from ..runtime import Run, vector
from ..streams import ResidualStreams
from .block import Sharing
from .per_layer import PerLayerGate
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


SOURCE = "Baykal et al. 2023, §3"


class AltUp(ResidualStreams):
    """The splitting of the embedding into AltUp's residual streams, and their merging after the last layer.

    Below the layers, they are the embedding and projections of it. After the last layer, the first stream and
    projections of the others are averaged.

    altup_num_inputs: the number of streams.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    kind: ClassVar[str] = "streams"

    type: Literal["altup"] = "altup"
    altup_num_inputs: int = Field(ge=2, le=64, strict=True)

    def check_layers(self, layers: Mapping[str, LayerParts]) -> None:
        required_fields = {"type": self.type, "altup_num_inputs": self.altup_num_inputs}
        if any(layer.requires().get("streams") != required_fields for layer in layers.values()):
            raise ValueError(
                "streams: those of type 'altup' stand where every layer is of type 'altup' with their "
                "altup_num_inputs, and nowhere else"
            )

    def source(self) -> str:
        return SOURCE

    def record_split(self, f: Flow, x: Value) -> Value:
        return f.part("streams_in", self, x)

    def record_merge(self, f: Flow, x: Value) -> Value:
        return f.part("streams_out", self, x, merge=True)

    def flow(self, f: Flow, x: Value, merge: bool = False) -> Value:
        """Records the split of the embedding into streams, or with `merge` their merge after the last layer."""
        hidden, other_streams = x.axes[-1], Axis("streams", self.altup_num_inputs - 1)
        first_stream, other_inputs = (f.take(x, hidden), f.take(x, other_streams, hidden)) if merge else (x, x)
        with f.function():
            length = f.root_mean_square(first_stream)
            f.hold(length=length)

            def projected(stream: Value) -> Value:
                """Returns a projection of one stream, scaled to the length of the first stream."""
                y = f.linear("", stream, hidden)
                f.hold_outside(y=y)
                return f.div(f.mul(y, length), f.root_mean_square(y))

            x = f.side_by_side("projections", other_streams, other_inputs, projected, after=first_stream, split=merge)
        return f.sum(x, hidden, mean=True) if merge else x

    def reference(self, context: Context) -> nn.Module:
        return _reference_classes()["streams"](self.altup_num_inputs, context.hidden_size)


class AltUpLayer(WholeLayer):
    """A layer that predicts all residual streams, computes on the first stream, and corrects the other streams.

    The sublayers' result corrects all streams. The layer's per-layer embedding is added to all streams but the first.

    altup_num_inputs: the number of streams.
    laurel_rank: the rank of the low-rank path beside attention.
    per_layer_input: how the layer uses its per-layer embedding.
    """

    witness: ClassVar[PartWitness] = BY_TORCH
    alone: ClassVar[bool] = False

    type: Literal["altup"] = "altup"
    altup_num_inputs: int = Field(ge=2, le=64, strict=True)
    laurel_rank: LaurelRank
    per_layer_input: PerLayerGate
    norm_placement: Literal["sandwich"] = "sandwich"
    parallel: None = None
    cross_attention: None = None

    def requires(self) -> Mapping[str, Mapping[str, Any]]:
        streams = {"type": self.type, "altup_num_inputs": self.altup_num_inputs}
        return {**super().requires(), "streams": streams, **self.per_layer_input.requires()}

    def source(self) -> str:
        return "Gemma 3n 2025"

    def flow(self, f: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        """Records the layer. x: all streams."""
        assert isinstance(self.attention, Component)
        assert isinstance(self.feed_forward, Component)
        streams, hidden = x.axes
        router = Weight("router", (streams,), (hidden,))
        predicted_streams, router_output = self._predicted_streams(f, x, router)
        active_stream = f.take(predicted_streams, hidden)
        f.hold(predicted=predicted_streams)
        normed = f.part("self_attn_pre_norm", self.norm, active_stream)
        f.hold(read=normed)
        y = self._sublayer_output(f, "self_attn", self.attention, normed)
        y = f.scale(f.add(f.add(active_stream, y), self._low_rank(f, normed)), 2**-0.5)
        f.hold(y=y)
        y = f.add(y, self._sublayer_output(f, "mlp", self.feed_forward, f.part("mlp_pre_norm", self.norm, y)))
        f.hold(y=y)
        corrected_streams, first_stream = self._corrected_streams(f, predicted_streams, y, router, router_output)
        f.hold(corrected=corrected_streams, first=first_stream)
        other_streams = f.take(corrected_streams, Axis("streams", self.altup_num_inputs - 1), hidden)
        with_embedding = f.add(
            other_streams, f.part("per_layer_input", self.per_layer_input, first_stream, norm=self.norm)
        )
        f.hold(fed=with_embedding)
        return f.cat(f.take(corrected_streams, Axis("streams", 1), hidden), with_embedding, axes=x.axes)

    def _sublayer_output(self, f: Flow, name: str, part: Component, x: Value) -> Value:
        """Returns the output of a sublayer after its norm."""
        with f.function():
            f.hold(x=x)
            return f.part(f"{name}_post_norm", self.norm, f.part(name, part, x))

    def _predicted_streams(self, f: Flow, x: Value, router: Weight) -> tuple[Value, Value]:
        """Predicts every stream: adds a mixture of all streams, with weights computed from the first stream.

        Returns all streams and the output of the router's norm.
        """
        streams, hidden = x.axes
        with f.scope("predict", kind="streams", source=SOURCE):
            normed = f.part("router_norm", self.norm, f.take(x, hidden))
            weights = self._mixing_weights(f, normed, router, streams, Axis("mixed", streams.size))
            f.hold(weights=weights)
            mix = ops.Product(hidden.size, streams.size, streams.size, x.rows)
            return f.add(x, f.core("mix", mix, weights, x, axes=x.axes)), normed

    def _mixing_weights(self, f: Flow, normed: Value, router: Weight, *out: Axis | Beside) -> Value:
        """Returns the mixing weights of the streams, computed from the norm of one stream."""
        hidden = normed.axes[-1]
        router_output = f.linear("router", f.scale(normed, 1 / hidden.size), out[0], weight=router)
        return f.linear("coefficients", f.act(router_output, "tanh"), *out)

    def _low_rank(self, f: Flow, x: Value) -> Value:
        """Adds to x a normalized low-rank projection of x (LAuReL)."""
        with f.scope("laurel", kind="attention", source="Menghani et al. 2024"):
            y = f.linear("right", f.linear("left", x, Axis("rank", self.laurel_rank)), *x.axes)
            return f.add(x, f.part("norm", self.norm, y))

    def _corrected_streams(
        self, f: Flow, predicted_streams: Value, sublayer_output: Value, router: Weight, router_output: Value
    ) -> tuple[Value, Value]:
        """Corrects all streams by the sublayers' result. Also returns the scaled first stream, for its embedding.

        sublayer_output: the output of the sublayers, whose input was the first stream.
        router, router_output: the router of `predict` and the output of its norm, both of which are reused.
        """
        streams, hidden = predicted_streams.axes
        with f.scope("correct", kind="streams", source=SOURCE):
            normed = f.normalized(sublayer_output, self.norm, like=router_output)
            shares = f.plus(self._mixing_weights(f, normed, router, streams), 1.0)
            f.hold(shares=shares)
            change = f.mul(
                shares, f.sub(sublayer_output, f.take(predicted_streams, hidden)), axes=predicted_streams.axes
            )
            corrected_streams = f.add(predicted_streams, change)
            return corrected_streams, f.mul(f.take(corrected_streams, hidden), f.vector("scale", hidden))

    def reference(self, context: Context) -> nn.Module:
        return _reference_classes()["layer"](self, context)

    @classmethod
    def examples(cls) -> list[Self]:
        """Returns no examples: the layer needs the stack's streams, and one of the stack's examples uses it."""
        return []


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    import torch
    from torch import nn

    def root_mean_square(x: Tensor) -> Tensor:
        return x.float().square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt().to(x.dtype)

    class StreamEnds(nn.Module):
        def __init__(self, streams: int, hidden: int) -> None:
            super().__init__()
            self.projections = nn.ModuleList(nn.Linear(hidden, hidden, bias=False) for _ in range(streams - 1))

        def _apply_maps(self, first_stream: Tensor, inputs: Sequence[Tensor]) -> Tensor:
            """Stacks the first stream and projections of the others scaled to its length: […, streams, hidden]."""
            length, streams = root_mean_square(first_stream), [first_stream]
            for projection, x in zip(self.projections, inputs, strict=True):
                y = projection(x)
                streams.append(y * length / root_mean_square(y))
            return torch.stack(streams, -2)

    class StreamSplit(StreamEnds):
        """Splits one stream into several. [batch, tokens, hidden] → [batch, tokens, streams, hidden]."""

        def forward(self, x: Tensor) -> Tensor:
            return self._apply_maps(x, [x] * len(self.projections))

    class StreamMerge(StreamEnds):
        """Merges the streams into one. [batch, tokens, streams, hidden] → [batch, tokens, hidden]."""

        def forward(self, x: Tensor) -> Tensor:
            return self._apply_maps(x[:, :, 0], x[:, :, 1:].unbind(2)).mean(2)

    class StreamsReference(nn.Module):
        def __init__(self, streams: int, hidden: int) -> None:
            super().__init__()
            self.streams_in, self.streams_out = StreamSplit(streams, hidden), StreamMerge(streams, hidden)

        def split_streams(self, x: Tensor, run: Run) -> Tensor:
            streams: Tensor = self.streams_in(x)
            return streams

        def merge_streams(self, x: Tensor, run: Run) -> Tensor:
            stream: Tensor = self.streams_out(x)
            return stream

    class Mix(nn.Module):
        def forward(self, coefficients: Tensor, x: Tensor) -> Tensor:
            """Mixes streams. coefficients: [batch, tokens, streams, streams], x: [batch, tokens, streams, hidden]."""
            return coefficients @ x

    class Predict(nn.Module):
        def __init__(self, streams: int, norm: Norm, context: Context) -> None:
            super().__init__()
            self.streams, self.router_norm = streams, norm.reference(context)
            self.router = nn.Linear(context.hidden_size, streams, bias=False)
            self.coefficients = nn.Linear(streams, streams * streams, bias=False)
            self.mix = Mix()

        def routed(self, x: Tensor, router: nn.Module) -> Tensor:
            out: Tensor = torch.tanh(router(self.router_norm(x) / x.shape[-1]))
            return out

        def forward(self, x: Tensor) -> Tensor:
            coefficients = self.coefficients(self.routed(x[:, :, 0], self.router))
            out: Tensor = x + self.mix(coefficients.unflatten(-1, (self.streams, self.streams)), x)
            return out

    class Correct(nn.Module):
        def __init__(self, streams: int, hidden: int, router: nn.Linear) -> None:
            super().__init__()
            self.router = nn.Linear(hidden, streams, bias=False)
            self.router.weight = router.weight
            self.coefficients = nn.Linear(streams, streams, bias=False)
            self.scale = vector(torch.ones(hidden))

        def forward(self, predicted_streams: Tensor, active_stream: Tensor, predict: Predict) -> tuple[Tensor, Tensor]:
            """Corrects the predicted streams. Also returns the scaled first stream, for the per-layer embedding."""
            share = self.coefficients(predict.routed(active_stream, self.router)) + 1
            corrected_streams = (
                predicted_streams + share[..., None] * (active_stream - predicted_streams[:, :, 0])[:, :, None]
            )
            return corrected_streams, corrected_streams[:, :, 0] * self.scale.weight

    class Laurel(nn.Module):
        def __init__(self, rank: int, norm: Norm, context: Context) -> None:
            super().__init__()
            self.left = nn.Linear(context.hidden_size, rank, bias=False)
            self.right = nn.Linear(rank, context.hidden_size, bias=False)
            self.norm = norm.reference(context)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = x + self.norm(self.right(self.left(x)))
            return out

    class AltUpLayerReference(nn.Module):
        """The AltUp layer. x: [batch, tokens, streams, hidden] → same shape."""

        def __init__(self, spec: AltUpLayer, context: Context) -> None:
            super().__init__()
            self.predict = Predict(spec.altup_num_inputs, spec.norm, context)
            self.laurel = Laurel(spec.laurel_rank, spec.norm, context)
            for name, part in (("self_attn", spec.attention), ("mlp", spec.feed_forward)):
                assert isinstance(part, Component)
                self.add_module(f"{name}_pre_norm", spec.norm.reference(context))
                self.add_module(name, part.reference(context))
                self.add_module(f"{name}_post_norm", spec.norm.reference(context))
            self.correct = Correct(spec.altup_num_inputs, context.hidden_size, self.predict.router)
            self.per_layer_input = spec.per_layer_input.reference(context, spec.norm)

        def _sublayer_output(self, name: str, x: Tensor, run: Run) -> Tensor:
            out: Tensor = self.get_submodule(f"{name}_post_norm")(self.get_submodule(name)(x, run))
            return out

        def forward(self, x: Tensor, run: Run) -> Tensor:
            predicted_streams = self.predict(x)
            active_stream = predicted_streams[:, :, 0]
            normed = self.get_submodule("self_attn_pre_norm")(active_stream)
            y = (active_stream + self._sublayer_output("self_attn", normed, run) + self.laurel(normed)) * 2**-0.5
            y = y + self._sublayer_output("mlp", self.get_submodule("mlp_pre_norm")(y), run)
            corrected_streams, first_stream = self.correct(predicted_streams, y, self.predict)
            with_embedding = corrected_streams[:, :, 1:] + self.per_layer_input(first_stream, run)[:, :, None]
            return torch.cat([corrected_streams[:, :, :1], with_embedding], 2)

    return {"streams": StreamsReference, "layer": AltUpLayerReference}
