"""A conformer's layer: a half-step feed-forward network, attention, a convolution, a half-step network, and a norm.

Gulati et al. 2020 (arXiv:2005.08100), §2. transformers: models/parakeet (NeMo's FastConformer: Rekesh 2023,
arXiv:2305.05084).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties, StackPosition
from ..conformer_convolution import ConformerConvolution
from ..mixers.relative_attention import RelativeAttention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class ConformerLayer(PreNormLayer):
    """A half-step network, attention, a convolution and a half-step network, each pre-norm and residual, then a norm.

    feed_forward: each of the two networks.
    convolution: the convolution along the frames.
    """

    formula_source: ClassVar[str] = "Gulati et al. 2020, §2"

    type: Literal["conformer"] = "conformer"
    convolution: ConformerConvolution

    def networks(self) -> list[Any]:
        return [self.feed_forward, self.feed_forward]

    def check_stack_position(self, stack_position: StackPosition) -> None:
        super().check_stack_position(stack_position)
        if stack_position.stack_name != "encoder":
            raise ValueError(f"{stack_position.error_path}.type: 'conformer' reads later frames; expected an encoder")

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        x = self._add_half_network_output(recorder, "mlp_1", x)
        recorder.hold(x=x)
        x = recorder.add(x, self._record_sublayer(recorder, "self_attn", self.attention, x))
        recorder.hold(x=x)
        residual_branch = recorder.part("convolution_pre_norm", self.norm, x)
        with recorder.scope("convolution", kind="convolution"):
            residual_branch = self.convolution.flow(recorder, residual_branch)
        x = self._add_half_network_output(recorder, "mlp_2", recorder.add(x, residual_branch))
        return recorder.part("norm", self.norm, x)

    def _add_half_network_output(self, recorder: Flow, network_name: str, x: Value) -> Value:
        """Records the computation of x plus half of the output of the named half-step network."""
        recorder.hold(x=x)
        return recorder.add(x, recorder.scale(self._record_sublayer(recorder, network_name, self.feed_forward, x), 0.5))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = RelativeAttention(num_attention_heads=4, head_dim=6, bias=True, segments=False)
        network = FeedForward(intermediate_size=40, hidden_act="silu", up_bias=True, down_bias=True)
        convolution = ConformerConvolution(kernel_size=5, bias=True, convolved=True, batch_norm=True, centred=True)
        norm = Norm(type="layernorm")
        layer = cls(attention=attention, feed_forward=network, convolution=convolution, norm=norm)
        causal_convolution = ConformerConvolution(kernel_size=4, norm=norm)
        return [layer, layer.model_copy(update={"convolution": causal_convolution})]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ConformerLayerReference(nn.Module):
        """Runs half-step networks around attention and a convolution. x: [batch, frames, hidden] → same shape."""

        def __init__(self, spec: ConformerLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            for sublayer_name, component in (
                ("mlp_1", spec.feed_forward),
                ("self_attn", spec.attention),
                ("convolution", spec.convolution),
                ("mlp_2", spec.feed_forward),
            ):
                self.add_module(f"{sublayer_name}_pre_norm", spec.norm.reference(model_properties))
                self.add_module(sublayer_name, component.reference(model_properties))
            self.norm = spec.norm.reference(model_properties)

        def _normalize(self, norm_name: str, x: Tensor) -> Tensor:
            return self.get_submodule(f"{norm_name}_pre_norm")(x)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = x + 0.5 * self.get_submodule("mlp_1")(self._normalize("mlp_1", x), pass_state)
            x = x + self.get_submodule("self_attn")(self._normalize("self_attn", x), pass_state)
            x = x + self.get_submodule("convolution")(self._normalize("convolution", x))
            x = x + 0.5 * self.get_submodule("mlp_2")(self._normalize("mlp_2", x), pass_state)
            return self.norm(x)

    return ConformerLayerReference
