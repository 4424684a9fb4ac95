"""A pre-norm layer whose attention reads a mixture of the residual stream and its initial value.

transformers: models/neomme (`NeoMMEEncoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, vector_module
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class InitialStatesLayer(PreNormLayer):
    """Attention to norm(λ₀ · x + λ₁ · x₀), where x₀ is the first layer's input, then a feed-forward network."""

    formula_source: ClassVar[str] = "NeoMME 2026"

    type: Literal["initial_states"] = "initial_states"

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        initial_x: Value = recorder.layer_memo.get("embedded", x)  # x itself where the layer is recorded alone
        one_channel = (Axis("one", 1),)
        x_scale, initial_scale = recorder.split(recorder.vector("lambdas", Axis("mixed", 2)), one_channel, one_channel)
        recorder.hold(x=x)
        mixed_states = recorder.add(
            recorder.mul(x, x_scale, axes=x.axes), recorder.mul(initial_x, initial_scale, axes=x.axes)
        )
        sublayer_output = self._record_sublayer(recorder, "self_attn", self.attention, mixed_states)
        x = recorder.add(x, recorder.dropout(sublayer_output, "attention_output", ends_sublayer=True))
        recorder.hold(x=x)
        sublayer_output = self._record_sublayer(recorder, "mlp", self.feed_forward, x)
        return recorder.add(x, recorder.dropout(sublayer_output, "feed_forward", ends_sublayer=True))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="relu2")
        return [cls(**{**example_sublayers(), "feed_forward": network, "norm": Norm(type="rmsnorm", weight=False)})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class InitialStatesLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs attention on λ₀ · x + λ₁ · x₀, then a network. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: InitialStatesLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            self.lambdas = vector_module(torch.tensor([1.0, 0.0]))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            initial_x = x if pass_state.first_layer_input is None else pass_state.first_layer_input
            mixed_states = self.lambdas.weight[0] * x + self.lambdas.weight[1] * initial_x
            x = x + self._sublayer_output("self_attn", mixed_states, pass_state)
            return x + self._sublayer_output("mlp", x, pass_state)

    return InitialStatesLayerReference
