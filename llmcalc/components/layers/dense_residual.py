"""A layer with parallel experts: the experts read the layer's input, the dense network reads attention's output.

Snowflake Arctic: vllm/model_executor/models/arctic.py of vllm-project/vllm (`ArcticDecoderLayer`, `use_residual`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties
from ..networks.feed_forward import FeedForward
from ..networks.moe import MoE
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class DenseResidualLayer(PreNormLayer):
    """A layer that computes a = x + attention(norm(x)), then a + dense(norm(a)) + experts(norm(x)).

    feed_forward: the experts.
    dense: the network beside them.
    """

    formula_source: ClassVar[str] = "Snowflake Arctic 2024"

    type: Literal["dense_residual"] = "dense_residual"
    dense: FeedForward

    def networks(self) -> list[Any]:
        return [self.feed_forward, self.dense]

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        recorder.hold(x=x)
        attention_sum = recorder.add(x, self._record_sublayer(recorder, "self_attn", self.attention, x))
        recorder.hold(x=x, attended=attention_sum)
        dense_sum = recorder.add(attention_sum, self._record_sublayer(recorder, "dense", self.dense, attention_sum))
        recorder.hold(x=x, y=dense_sum)
        return recorder.add(dense_sum, self._record_sublayer(recorder, "mlp", self.feed_forward, x))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        layer_fields = example_sublayers()
        experts = MoE(num_experts=4, num_experts_per_tok=2, expert=layer_fields["feed_forward"])
        return [cls(**{**layer_fields, "feed_forward": experts}, dense=layer_fields["feed_forward"].model_copy())]


@cache
def _reference_class() -> type[nn.Module]:
    class DenseResidualLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs attention, then a dense network in parallel to experts. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: DenseResidualLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.dense_pre_norm = spec.norm.reference(model_properties)
            self.dense = spec.dense.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            attention_sum = x + self._sublayer_output("self_attn", x, pass_state)
            return (
                attention_sum
                + self._sublayer_output("dense", attention_sum, pass_state)
                + self._sublayer_output("mlp", x, pass_state)
            )

    return DenseResidualLayerReference
