"""A standard layer followed by gated cross-attention to an encoder, which text-only input skips.

Evolla (transformers: models/evolla, `EvollaSequenceAlignerCrossAttention`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState
from .block import Block, LayerSharing
from .gated_cross import GatedCrossLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class AdaptedLayer(Block):
    """A standard layer, with the parameters of a cross-attention adapter that text-only input skips.

    adapter: the cross-attention and the network of the adapter.
    """

    is_plain_transformer_layer: ClassVar[bool] = False

    type: Literal["adapted"] = "adapted"  # type: ignore[assignment]
    adapter: GatedCrossLayer

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        x = super().flow(recorder, x, layer_sharing)
        with recorder.scope("adapter"):
            self.adapter.flow(recorder, x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(super().reference(model_properties), self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        block = Block.examples()[0]
        attention = Attention(num_attention_heads=4, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
        adapter = GatedCrossLayer(
            attention=attention,
            feed_forward=FeedForward(intermediate_size=30, hidden_act="gelu"),
            norm=Norm(type="rmsnorm"),
            feed_forward_norm=Norm(type="layernorm"),
        )
        layer_fields = {
            field_name: getattr(block, field_name)
            for field_name in ("attention", "feed_forward", "norm", "norm_placement")
        }
        return [cls(**layer_fields, adapter=adapter)]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class AdaptedLayerReference(nn.Module):
        """Runs the standard layer; the adapter is only stored. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, layer: nn.Module, spec: AdaptedLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            for child_name, child_module in layer.named_children():
                self.add_module(child_name, child_module)
            self._layer: tuple[Any, ...] = (layer,)  # as a tuple: its children are registered as this module's own
            self.adapter = spec.adapter.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self._layer[0].forward(x, pass_state)

    return AdaptedLayerReference
