"""Hyper-connections of Qwen4-Exp: sublayers read an elementwise gated mean of several residual streams.

All streams of a token are normalized; a projection of low rank gives each element's gate, and another one the factor
with which each stream takes the sublayer's output. The streams are not mixed with each other. Before its sublayers a
layer may add embeddings of n-grams. transformers: models/qwen4_exp (`Qwen4ExpTextGatedResidual`,
`Qwen4ExpTextDecoderLayer`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties, QueryRank, StreamCount
from ..mixers.attention import Attention
from ..mixers.mean_indexer import MeanIndexer
from ..norm import Norm, norm_reference
from ..part_choice import component_type
from ..residual_streams import CopiedStreams, copied_streams_class
from ..rope import Rope
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..ngram_input import NgramInput
else:
    NgramInput = component_type("ngram_input:NgramInput")


def record_gated_mean(recorder: Flow, x: Value, norm: Norm, rank: int) -> tuple[Value, Value]:
    """Returns the gated mean of all streams, and the normalized streams. x: all streams."""
    stream_axis, hidden_axis = x.axes
    assert isinstance(stream_axis, Axis)
    normed_streams = recorder.norm("norm", x, norm, groups=stream_axis)
    gate = recorder.act(recorder.linear("down", normed_streams, Axis("rank", rank)), "silu")
    gate = recorder.act(recorder.linear("up", gate, stream_axis, hidden_axis), "sigmoid")
    recorder.hold(normed=normed_streams, gate=gate)
    return recorder.sum(recorder.mul(gate, normed_streams), hidden_axis, is_mean=True), normed_streams


class GatedStreamsLayer(PreNormLayer):
    """A layer whose sublayers read a gated mean of several residual streams and write to all of them.

    hc_mult: the number of streams.
    hc_lowrank: the rank of the projection that gives the gates.
    ngram_input: the embeddings of n-grams that are added to all streams first; none by default.
    norm: the norm on each stream, with one weight vector for all; the sublayers have no norm besides.
    """

    formula_source: ClassVar[str] = "Qwen4-Exp 2026"
    can_run_alone: ClassVar[bool] = False

    type: Literal["gated_streams"] = "gated_streams"
    hc_mult: StreamCount
    hc_lowrank: QueryRank
    ngram_input: NgramInput | None = None

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {**super().required_stack_fields(), "streams": {"type": self.type, "hc_mult": self.hc_mult}}

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        """Records the layer's operations. x: all residual streams."""
        if self.ngram_input is not None:
            x = recorder.add(x, recorder.part("ngram_input", self.ngram_input, x))
        for component, connection_name in (
            (self.attention, "self_attn_connection"),
            (self.feed_forward, "mlp_connection"),
        ):
            with recorder.scope(connection_name, kind="stream_gate"):
                sublayer_input, normed_streams = record_gated_mean(recorder, x, self.norm, self.hc_lowrank)
                write_weights = recorder.scale(
                    recorder.act(recorder.linear("write", normed_streams, x.axes[0]), "sigmoid"), 2.0
                )
            recorder.hold(x=x, written=write_weights)
            sublayer_output = recorder.part(component.node_name, component, sublayer_input)
            x = recorder.add(x, recorder.mul(write_weights, sublayer_output, axes=x.axes))
            recorder.hold(x=x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["layer"](self, model_properties)


class GatedStreams(CopiedStreams):
    """Residual streams: copies of the embedding. A gated mean of the streams is the output.

    hc_mult: the number of streams.
    hc_lowrank: the rank of the projection that gives the gates.
    norm: the norm on each stream.
    """

    formula_source: ClassVar[str] = "Qwen4-Exp 2026"
    kind: ClassVar[str] = "stream_gate"

    type: Literal["gated_streams"] = "gated_streams"
    hc_lowrank: QueryRank
    norm: Norm

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        return recorder.part("stream_output", self, x)

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Returns the gated mean of the streams. x: all streams."""
        gated_mean, _ = record_gated_mean(recorder, x, self.norm, self.hc_lowrank)
        return gated_mean

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_classes()["streams"](self, model_properties)


def gated_streams_example(**layer_fields: Any) -> GatedStreamsLayer:
    """Returns a small layer for the contract tests' examples. layer_fields: fields with other values."""
    indexer = MeanIndexer(index_n_heads=3, index_head_dim=8, index_block_size=3, index_topk_blocks=2)
    attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope(), block_indexer=indexer)
    default_fields = {**example_sublayers(), "attention": attention, "hc_mult": 3, "hc_lowrank": 5}
    return GatedStreamsLayer(**{**default_fields, **layer_fields})


@cache
def _reference_classes() -> dict[str, type[nn.Module]]:
    from torch import nn
    from torch.nn import functional as F

    class GatedConnection(nn.Module):
        """Computes the gated mean of streams [batch, tokens, streams, hidden], and the optional write factors."""

        def __init__(self, norm: Norm, stream_count: int, rank: int, hidden_size: int, has_write_weights: bool) -> None:
            super().__init__()
            self.streams, streams_width = stream_count, stream_count * hidden_size
            self.norm = norm_reference(norm, streams_width, group_count=stream_count)
            self.down, self.up = nn.Linear(streams_width, rank, bias=False), nn.Linear(rank, streams_width, bias=False)
            self.write = nn.Linear(streams_width, stream_count, bias=False) if has_write_weights else None

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            normed_streams = self.norm(x.flatten(2))
            gate = self.up(F.silu(self.down(normed_streams) / self.streams)).sigmoid()
            gated_mean = (gate * normed_streams).unflatten(-1, (self.streams, -1)).mean(2)
            return gated_mean, None if self.write is None else 2 * (self.write(normed_streams) / self.streams).sigmoid()

    class GatedStreamsLayerReference(nn.Module):
        """Runs sublayers on gated means of the streams. x: [batch, tokens, streams, hidden] → same shape."""

        def __init__(self, spec: GatedStreamsLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.sublayers = []
            self.ngram_input = None if spec.ngram_input is None else spec.ngram_input.reference(model_properties)
            for sublayer_name, component in (("self_attn", spec.attention), ("mlp", spec.feed_forward)):
                connection = GatedConnection(
                    spec.norm, spec.hc_mult, spec.hc_lowrank, model_properties.hidden_size, True
                )
                self.add_module(f"{sublayer_name}_connection", connection)
                self.add_module(component.node_name, component.reference(model_properties))
                self.sublayers.append((f"{sublayer_name}_connection", component.node_name))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = x if self.ngram_input is None else x + self.ngram_input(x, pass_state)
            for connection_name, sublayer_name in self.sublayers:
                gated_mean, write_weights = self.get_submodule(connection_name)(x)
                x = x + write_weights[..., None] * self.get_submodule(sublayer_name)(gated_mean, pass_state)[:, :, None]
            return x

    class GatedStreamsReference(copied_streams_class()):  # type: ignore[misc]
        """Copies one residual stream into several streams, and reads the gated mean of the streams."""

        def __init__(self, spec: GatedStreams, model_properties: ModelProperties) -> None:
            super().__init__(spec.hc_mult)
            self.stream_output = GatedConnection(
                spec.norm, spec.hc_mult, spec.hc_lowrank, model_properties.hidden_size, False
            )

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            gated_mean, _ = self.stream_output(x)
            return gated_mean

    return {"layer": GatedStreamsLayerReference, "streams": GatedStreamsReference}
