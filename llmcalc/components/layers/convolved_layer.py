"""A layer whose attention and network outputs pass a short causal convolution before the residual addition.

transformers: models/inkling (`InklingDecoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import KernelSize, ModelProperties
from ..networks.feed_forward import FeedForward
from ..residual_convolution import record_residual_convolution, residual_convolution_class
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConvolvedLayer(PreNormLayer):
    """Attention, then a feed-forward network, with a norm before each and a convolution after each.

    conv_kernel_size: the width in tokens of both convolutions.
    """

    formula_source: ClassVar[str] = "Inkling 2026"

    type: Literal["convolved"] = "convolved"
    conv_kernel_size: KernelSize

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        for sublayer_name, component in (("self_attn", self.attention), ("mlp", self.feed_forward)):
            sublayer_output = self._record_sublayer(recorder, sublayer_name, component, x)
            recorder.hold(x=x, y=sublayer_output)
            x = recorder.add(
                x,
                record_residual_convolution(recorder, f"{sublayer_name}_conv", sublayer_output, self.conv_kernel_size),
            )
            recorder.hold(x=x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True, output_scale=True)
        layer = cls(**{**example_sublayers(), "feed_forward": network}, conv_kernel_size=3)
        return [layer, layer.model_copy(update={"conv_kernel_size": 4})]


@cache
def _reference_class() -> type[nn.Module]:
    class ConvolvedLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Adds a convolution of each sublayer's output to x. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ConvolvedLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            for sublayer_name in ("self_attn", "mlp"):
                convolution = residual_convolution_class()(model_properties.hidden_size, spec.conv_kernel_size)
                self.add_module(f"{sublayer_name}_conv", convolution)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for sublayer_name in ("self_attn", "mlp"):
                sublayer_output = self._sublayer_output(sublayer_name, x, pass_state)
                x = x + self.get_submodule(f"{sublayer_name}_conv")(sublayer_output, pass_state)
            return x

    return ConvolvedLayerReference
