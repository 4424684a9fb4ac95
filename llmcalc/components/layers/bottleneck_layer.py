"""MobileBERT's layer: attention and several feed-forward networks, narrower than the residual stream.

Sun et al. 2020 (arXiv:2004.02984), §3.1: a linear layer leads into the bottleneck and one out of it. Queries and keys
read a second projection of the layer's input, and values the input itself. transformers: models/mobilebert
(`MobileBertLayer`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Component, HeadSizes, InnerWidth, ModelProperties, UnscalableError
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, apply_dropout
from .block import LayerSharing
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn

MAX_NETWORKS = 64
"""The largest number of feed-forward networks in a layer."""


class InnerNetwork(Component):
    """A feed-forward network inside the bottleneck, computed as norm(x + network(x)).

    feed_forward: the network.
    norm: the norm of the sum.
    """

    feed_forward: FeedForward
    norm: Norm

    def flow(self, recorder: Flow, x: Value) -> Value:
        network_output = recorder.part("mlp", self.feed_forward, x)
        return recorder.part("mlp_post_norm", self.norm, recorder.add(x, network_output))

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _inner_reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        return [cls(feed_forward=FeedForward(intermediate_size=20, hidden_act="relu"), norm=Norm(type="affine"))]


class BottleneckLayer(WholeLayer):
    """Post-norm attention and networks of width `bottleneck_size`, with projections before and after.

    attention: attention with a head_dim of its own.
    bottleneck_size: the width inside the layer.
    num_feedforward_networks: the number of networks, one after the other.
    """

    formula_source: ClassVar[str] = "Sun et al. 2020, §3.1"
    is_plain_transformer_layer: ClassVar[bool] = False

    type: Literal["bottleneck"] = "bottleneck"
    attention: Attention
    feed_forward: FeedForward
    bottleneck_size: InnerWidth
    num_feedforward_networks: int = Field(ge=1, le=MAX_NETWORKS, strict=True)
    norm_placement: Literal["post"] = "post"

    def networks(self) -> list[Any]:
        return [self.feed_forward] * self.num_feedforward_networks

    def scaled(
        self, hidden_size: int, heads: Callable[[HeadSizes], HeadSizes], scale_width: Callable[[int], Number]
    ) -> Self:
        raise UnscalableError("a 'bottleneck' layer has a width of its own; expected layers as wide as the model")

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        bottleneck_axis = Axis("bottleneck", self.bottleneck_size)
        narrow_states = self._project_to_bottleneck(recorder, "bottleneck", x, bottleneck_axis)
        attention_input = self._project_to_bottleneck(recorder, "attention_bottleneck", x, bottleneck_axis)
        recorder.hold(x=x, y=narrow_states, read=attention_input)
        attn_output = recorder.part("self_attn", self.attention, attention_input, value_input=x)
        narrow_states = self._add_and_normalize(
            recorder, "self_attn", narrow_states, recorder.dropout(attn_output, "attention_output", ends_sublayer=True)
        )
        inner_network = InnerNetwork(feed_forward=self.feed_forward, norm=self.norm)
        for network_index in range(self.num_feedforward_networks - 1):
            narrow_states = recorder.part("inner", inner_network, narrow_states, list_index=network_index)
            recorder.hold(y=narrow_states)
        narrow_states = self._add_and_normalize(
            recorder, "mlp", narrow_states, recorder.part("mlp", self.feed_forward, narrow_states)
        )
        layer_output = recorder.linear("output_bottleneck", narrow_states, *x.axes, bias=True)
        layer_output = recorder.dropout(layer_output, "feed_forward", ends_sublayer=True)
        return recorder.part("output_bottleneck_norm", self.norm, recorder.add(x, layer_output))

    def _project_to_bottleneck(self, recorder: Flow, bottleneck_name: str, x: Value, bottleneck_axis: Axis) -> Value:
        """Returns the linear projection of x into the bottleneck's width."""
        return recorder.part(
            f"{bottleneck_name}_norm", self.norm, recorder.linear(bottleneck_name, x, bottleneck_axis, bias=True)
        )

    def _add_and_normalize(self, recorder: Flow, sublayer_name: str, x: Value, sublayer_output: Value) -> Value:
        """Returns the normalized sum of the bottleneck's residual stream and a sublayer's output."""
        x = recorder.part(f"{sublayer_name}_post_norm", self.norm, recorder.add(x, sublayer_output))
        recorder.hold(y=x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = Attention(num_attention_heads=2, head_dim=5, q_bias=True, k_bias=True, v_bias=True, o_bias=True)
        network = FeedForward(intermediate_size=20, hidden_act="relu", up_bias=True, down_bias=True)
        layer = cls(
            attention=attention,
            feed_forward=network,
            norm=Norm(type="affine"),
            bottleneck_size=10,
            num_feedforward_networks=3,
        )
        changed_fields = {"num_feedforward_networks": 1, "norm": Norm(type="layernorm")}
        return [layer, layer.model_copy(update=changed_fields)]


@cache
def _inner_reference_class() -> type[nn.Module]:
    from torch import nn

    class InnerNetworkReference(nn.Module):
        """Computes norm(x + network(x)). x: [batch, tokens, bottleneck] → same shape."""

        def __init__(self, spec: InnerNetwork, model_properties: ModelProperties) -> None:
            super().__init__()
            self.mlp = spec.feed_forward.reference(model_properties)
            self.mlp_post_norm = spec.norm.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            return self.mlp_post_norm(x + self.mlp(x, pass_state))

    return InnerNetworkReference


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class BottleneckLayerReference(nn.Module):
        """Runs attention and networks at a narrow width, for MobileBERT. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: BottleneckLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            hidden_size, bottleneck_width = model_properties.hidden_size, spec.bottleneck_size
            inner_properties = ModelProperties(bottleneck_width, model_properties.is_causal)
            self._add_bottleneck_input("bottleneck", spec.norm, hidden_size, inner_properties)
            self._add_bottleneck_input("attention_bottleneck", spec.norm, hidden_size, inner_properties)
            self.self_attn = spec.attention.reference(
                ModelProperties(bottleneck_width, model_properties.is_causal, value_size=hidden_size)
            )
            self.self_attn_post_norm = spec.norm.reference(inner_properties)
            inner_network = InnerNetwork(feed_forward=spec.feed_forward, norm=spec.norm)
            self.inner = nn.ModuleList(
                inner_network.reference(inner_properties) for _ in range(spec.num_feedforward_networks - 1)
            )
            self.mlp = spec.feed_forward.reference(inner_properties)
            self.mlp_post_norm = spec.norm.reference(inner_properties)
            self.output_bottleneck = nn.Linear(bottleneck_width, hidden_size)
            self.output_bottleneck_norm = spec.norm.reference(model_properties)

        def _add_bottleneck_input(
            self, bottleneck_name: str, norm: Component, hidden_size: int, inner_properties: ModelProperties
        ) -> None:
            self.add_module(bottleneck_name, nn.Linear(hidden_size, inner_properties.hidden_size))
            self.add_module(f"{bottleneck_name}_norm", norm.reference(inner_properties))

        def _project_to_bottleneck(self, bottleneck_name: str, x: Tensor) -> Tensor:
            return self.get_submodule(f"{bottleneck_name}_norm")(self.get_submodule(bottleneck_name)(x))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            narrow_states = self._project_to_bottleneck("bottleneck", x)
            attn_output = self.self_attn(self._project_to_bottleneck("attention_bottleneck", x), pass_state, x)
            attn_output = apply_dropout(self, "attention_output", attn_output)
            narrow_states = self.self_attn_post_norm(narrow_states + attn_output)
            for network in self.inner:
                narrow_states = network(narrow_states, pass_state)
            narrow_states = self.mlp_post_norm(narrow_states + self.mlp(narrow_states, pass_state))
            layer_output = apply_dropout(self, "feed_forward", self.output_bottleneck(narrow_states))
            return self.output_bottleneck_norm(x + layer_output)

    return BottleneckLayerReference
