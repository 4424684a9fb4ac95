"""Block attention residuals: sublayers read a weighted sum of the residual streams of all blocks of layers.

Kimi Team 2026 (Attention Residuals), used by Kimi K3 (arXiv:2607.24653, §2.2). Layers form blocks. The sublayers of a
block add to one running sum; the sum of a finished block stays. Before each sublayer, softmax attention over these
sums and the running one, with one learned query per sublayer, gives the sublayer's input.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from ... import ops
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, LayerProtocol, ModelProperties
from ..norm import Norm
from ..residual_streams import ResidualStreams
from ..runtime import PassState, vector_module
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers

if TYPE_CHECKING:
    from torch import Tensor, nn

SOURCE = "Kimi Team 2026 (arXiv:2607.24653), §2.2"
MAX_BLOCKS = 1000


def record_block_sum_mixing(
    recorder: Flow,
    mix_name: str,
    x: Value,
    block_count: int,
    norm: Norm,
    *,
    normed_values: bool = False,
    query_count: int = 1,
) -> list[Value]:
    """Records a weighted sum, per learned query, of all finished blocks' residual sums and of the current block's sum.

    x: the running sum. block_count: the number of finished blocks.
    normed_values: whether the sums that are added up are those after the norm.
    """
    if not block_count:
        return [x] * query_count
    (hidden_axis,), source_axis, query_axis = x.axes, Axis("sources", block_count + 1), Axis("queries", query_count)
    query_axes = () if query_count == 1 else (query_axis,)
    with recorder.scope(mix_name, kind="residual", source=SOURCE):
        earlier_sums = recorder.copies(x, Axis("sources", block_count))  # as large as those of other layers
        block_sums = recorder.cat(
            earlier_sums, x.view(Axis("sources", 1), hidden_axis), axes=(source_axis, hidden_axis)
        )
        recorder.hold(values=block_sums)
        keys = recorder.norm("norm", block_sums, norm, (hidden_axis,))
        block_sums = keys if normed_values else block_sums
        recorder.hold(keys=keys, values=block_sums)
        query = recorder.vector("proj", *query_axes, hidden_axis)
        score_op = ops.Product(source_axis.size, hidden_axis.size, query_count, x.rows)
        scores = recorder.core("scores", score_op, keys, query, axes=(*query_axes, source_axis))
        mix_weights = recorder.act(scores, "softmax")
        recorder.hold(shares=mix_weights)
        mix_op = ops.Product(query_count, source_axis.size, hidden_axis.size, x.rows)
        mixed_sums = recorder.core(
            "mix", mix_op, mix_weights.view(query_axis, source_axis), block_sums, axes=(query_axis, hidden_axis)
        )
        if query_count == 1:
            return [mixed_sums.view(hidden_axis)]
        return [recorder.take(mixed_sums, hidden_axis) for _ in range(query_count)]


class BlockResidualLayer(PreNormLayer):
    """A layer whose sublayers read the residual sums of all earlier blocks of layers.

    attention_blocks: the number of finished blocks whose sums attention reads beside the running sum; 0 for the first
        layer, which reads the embedding alone.
    feed_forward_blocks: the same of the feed-forward network.
    starts_block: whether the layer ends the running sum and starts a new one; false by default.
    idle_residual: whether a first layer holds the weights with which attention would read finished blocks (Kimi K3);
        false by default.
    """

    formula_source: ClassVar[str] = SOURCE
    can_run_alone: ClassVar[bool] = False

    type: Literal["block_residual"] = "block_residual"
    attention_blocks: int = Field(ge=0, le=MAX_BLOCKS, strict=True)
    feed_forward_blocks: int = Field(ge=1, le=MAX_BLOCKS, strict=True)
    starts_block: Flag = False
    idle_residual: Flag = False

    def check_fields(self) -> None:
        super().check_fields()
        expected_blocks = self.attention_blocks + self.starts_block
        if self.feed_forward_blocks != expected_blocks:
            raise ValueError(
                f"feed_forward_blocks: {self.feed_forward_blocks}; expected attention_blocks, and one more in a layer "
                f"that starts a block ({expected_blocks})"
            )
        if self.idle_residual and self.attention_blocks:
            raise ValueError(f"idle_residual: attention reads {self.attention_blocks} finished blocks; expected false")

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {**super().required_stack_fields(), "streams": {"type": "block_residual"}}

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        if self.idle_residual:
            with recorder.scope("self_attn_residual", kind="residual", source=SOURCE, role="idle"):
                recorder.norm("norm", x, self.norm)
                recorder.vector("proj", *x.axes)
        for sublayer_name, component, block_count in (
            ("self_attn", self.attention, self.attention_blocks),
            ("mlp", self.feed_forward, self.feed_forward_blocks),
        ):
            (sublayer_input,) = record_block_sum_mixing(
                recorder, f"{sublayer_name}_residual", x, block_count, self.norm
            )
            recorder.hold(x=x, read=sublayer_input)
            sublayer_output = self._record_sublayer(recorder, sublayer_name, component, sublayer_input)
            recorder.hold(y=sublayer_output)
            x = (
                sublayer_output
                if sublayer_name == "self_attn" and self.starts_block
                else recorder.add(x, sublayer_output)
            )
            recorder.hold(x=x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return block_residual_reference_classes()["layer"](self, model_properties)


class BlockResiduals(ResidualStreams):
    """The residual sums of all blocks of layers, and their weighted sum after the last layer.

    blocks: the number of blocks whose sums the output reads when the last layer has run.
    norm: the norm on the sums, of which the scores are computed.
    normed_values: whether the sums that are added up are those after the norm (Inkling 2), false by default.
    """

    formula_source: ClassVar[str] = SOURCE
    kind: ClassVar[str] = "residual"

    type: Literal["block_residual"] = "block_residual"
    blocks: int = Field(ge=1, le=MAX_BLOCKS, strict=True)
    norm: Norm
    normed_values: Flag = False

    def check_layers(self, layers: Mapping[str, LayerProtocol]) -> None:
        required_fields = {"type": self.type}
        if any(layer.required_stack_fields().get("streams") != required_fields for layer in layers.values()):
            raise ValueError("streams: those of type 'block_residual' stand where every layer is of that type")

    def record_stream_split(self, recorder: Flow, x: Value) -> Value:
        return x

    def record_stream_merge(self, recorder: Flow, x: Value) -> Value:
        (mixed_sums,) = record_block_sum_mixing(
            recorder, "output_residual", x, self.blocks, self.norm, normed_values=self.normed_values
        )
        return mixed_sums

    def flow(self, recorder: Flow, x: Value) -> Value:
        return self.record_stream_merge(recorder, x)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return block_residual_reference_classes()["streams"](self, model_properties)


def block_residual_example(**layer_fields: Any) -> BlockResidualLayer:
    """Returns a small layer for the contract tests, by default a stack's first. layer_fields: fields to change."""
    default_fields = {**example_sublayers(), "attention_blocks": 0, "feed_forward_blocks": 1, "starts_block": True}
    return BlockResidualLayer(**{**default_fields, **layer_fields})


@cache
def block_residual_reference_classes() -> dict[str, type[nn.Module]]:
    """Returns the PyTorch classes of the reference: the layer, the residual streams and the mix of block sums."""
    import torch
    from torch import nn

    class BlockSumScores(nn.Module):
        """Computes attention scores of block sums. keys: [.., sums, hidden], query: [hidden] or [queries, hidden]."""

        def forward(self, keys: Tensor, query: Tensor) -> Tensor:
            return (keys @ query.reshape(-1, query.shape[-1]).t()).transpose(-1, -2)

    class WeightedSum(nn.Module):
        """Computes weighted sums. mix_weights: [.., queries, sums] → [.., queries, hidden]."""

        def forward(self, mix_weights: Tensor, sources: Tensor) -> Tensor:
            return mix_weights @ sources

    class BlockSumMixing(nn.Module):
        """Attends over residual sums [batch, tokens, hidden]. block_sums: sums of finished blocks. x: the running sum.

        Returns one mix for each query, of that shape.
        """

        def __init__(
            self, norm: Norm, model_properties: ModelProperties, normed_values: bool = False, query_count: int = 1
        ) -> None:
            super().__init__()
            query_shape = (
                (model_properties.hidden_size,) if query_count == 1 else (query_count, model_properties.hidden_size)
            )
            self.norm, self.proj = norm.reference(model_properties), vector_module(torch.zeros(query_shape))
            self.normed_values, self.scale = normed_values, model_properties.hidden_size**-0.5 if normed_values else 1.0
            self.scores, self.mix = BlockSumScores(), WeightedSum()

        def forward(self, block_sums: list[Tensor], x: Tensor) -> tuple[Tensor, ...]:
            sources = torch.stack([*block_sums, x], 2)
            keys = self.norm(sources)
            mix_weights = (self.scores(keys, self.proj.weight) * self.scale).softmax(-1)
            mixed_sums = self.mix(mix_weights, keys if self.normed_values else sources)
            return tuple(mixed_sums[..., sum_index, :] for sum_index in range(mixed_sums.shape[-2]))

    class BlockResidualLayerReference(nn.Module):
        """Runs sublayers on mixed residual sums. x: the running sum, [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: BlockResidualLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.spec = spec
            for sublayer_name, component, block_count in (
                ("self_attn", spec.attention, spec.attention_blocks),
                ("mlp", spec.feed_forward, spec.feed_forward_blocks),
            ):
                if block_count or (sublayer_name == "self_attn" and spec.idle_residual):
                    self.add_module(f"{sublayer_name}_residual", BlockSumMixing(spec.norm, model_properties))
                self.add_module(f"{sublayer_name}_pre_norm", spec.norm.reference(model_properties))
                self.add_module(sublayer_name, component.reference(model_properties))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            spec = self.spec
            for sublayer_name, block_count in (("self_attn", spec.attention_blocks), ("mlp", spec.feed_forward_blocks)):
                block_sums = pass_state.shared_values["block_sums"][
                    :block_count
                ]  # without those of layers above, when the layer runs again
                assert len(block_sums) == block_count, (
                    f"a layer that reads {block_count} blocks stands above {len(block_sums)}"
                )
                (sublayer_input,) = (
                    self.get_submodule(f"{sublayer_name}_residual")(block_sums, x) if block_count else (x,)
                )
                sublayer_output = self.get_submodule(sublayer_name)(
                    self.get_submodule(f"{sublayer_name}_pre_norm")(sublayer_input), pass_state
                )
                starts_block = sublayer_name == "self_attn" and spec.starts_block
                if starts_block:
                    pass_state.shared_values["block_sums"] = [*block_sums, x]
                x = sublayer_output if starts_block else x + sublayer_output
            return x

    class BlockResidualStreamsReference(nn.Module):
        """Creates an empty list of residual sums before the first layer, and mixes the sums after the last layer."""

        def __init__(self, spec: BlockResiduals, model_properties: ModelProperties) -> None:
            super().__init__()
            self.output_residual = BlockSumMixing(spec.norm, model_properties, spec.normed_values)

        def split_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            pass_state.shared_values["block_sums"] = []
            return x

        def merge_streams(self, x: Tensor, pass_state: PassState) -> Tensor:
            (mixed_sum,) = self.output_residual(pass_state.shared_values["block_sums"], x)
            return mixed_sum

    return {"layer": BlockResidualLayerReference, "streams": BlockResidualStreamsReference, "mix": BlockSumMixing}
