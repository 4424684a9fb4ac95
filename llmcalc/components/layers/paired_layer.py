"""A standard layer with a second set of weights for another kind of tokens, such as image tokens, unused by text.

CogVLM (Wang 2023, arXiv:2311.03079, §2.1) has it for images, Higgs Audio v2 for sound. transformers:
models/higgs_audio_v2 (`HiggsAudioV2DecoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import Flag, ModelProperties
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..runtime import PassState
from .block import Block, LayerSharing

if TYPE_CHECKING:
    from torch import Tensor, nn


class PairedLayer(Block):
    """A standard layer that also stores the weights for another kind of tokens, such as image tokens.

    other_feed_forward: the network of the other tokens.
    other_attention: their projections of queries, keys, values and output; by default they use the layer's.
    other_norms: whether they have norms of their own before both sublayers, false by default.
    """

    is_plain_transformer_layer: ClassVar[bool] = False
    formula_source: ClassVar[str] = "Wang et al. 2023 (CogVLM), §2.1"

    type: Literal["paired"] = "paired"  # type: ignore[assignment]
    other_feed_forward: FeedForward
    other_attention: Attention | None = None
    other_norms: Flag = False

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        output = super().flow(recorder, x, layer_sharing)
        with recorder.scope("other"):
            for norm_name in ("self_attn_pre_norm", "mlp_pre_norm") if self.other_norms else ():
                recorder.part(norm_name, self.norm, x, role="idle")
            if self.other_attention is not None:
                recorder.part("self_attn", self.other_attention, x, role="idle")
            recorder.part("mlp", self.other_feed_forward, x, role="idle")
        return output

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(super().reference(model_properties), self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        block, network = Block.examples()[0], FeedForward(intermediate_size=30, hidden_act="gelu")
        attention = Attention(num_attention_heads=4, q_bias=True)
        layer_fields = {
            field_name: getattr(block, field_name)
            for field_name in ("attention", "feed_forward", "norm", "norm_placement")
        }
        return [
            cls(**layer_fields, other_feed_forward=network, other_norms=True),
            cls(**layer_fields, other_feed_forward=network, other_attention=attention),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class PairedLayerReference(nn.Module):
        """Runs the standard layer; weights for another kind of tokens are only stored. x: [batch, tokens, hidden]."""

        def __init__(self, layer: nn.Module, spec: PairedLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            for child_name, child_module in layer.named_children():
                self.add_module(child_name, child_module)
            self._layer: tuple[Any, ...] = (layer,)  # as a tuple: its children are registered as this module's own
            self.other = nn.Module()
            for norm_name in ("self_attn_pre_norm", "mlp_pre_norm") if spec.other_norms else ():
                self.other.add_module(norm_name, spec.norm.reference(model_properties))
            if spec.other_attention is not None:
                self.other.add_module("self_attn", spec.other_attention.reference(model_properties))
            self.other.add_module("mlp", spec.other_feed_forward.reference(model_properties))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self._layer[0].forward(x, pass_state)

    return PairedLayerReference
