"""A layer whose residual sums are weighted: α · x + β · y, with a learned gate per feature.

transformers: models/muse_spark (`MuseSparkResidualGate`, `MuseSparkTextDecoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import Component, ModelProperties
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..position import Rope
from ..runtime import ForwardPass, vector
from .block import Sharing
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class ResidualGateLayer(WholeLayer):
    """Attention, then a feed-forward network, with a norm before and after each, and a gated sum.

    The gate g of a feature gives β = σ(g) and α = √(σ(−g) · (1 + β)), so that α² + β² = 1.

    norm: the norm before each sublayer.
    attention_output_norm: the norm of attention's output.
    feed_forward_output_norm: the norm of the network's output.
    """

    plain: ClassVar[bool] = False

    type: Literal["residual_gate"] = "residual_gate"
    attention_output_norm: Norm
    feed_forward_output_norm: Norm
    norm_placement: Literal["sandwich"] = "sandwich"
    parallel: None = None
    cross_attention: None = None

    def source(self) -> str:
        return "Muse Spark 2026"

    def flow(self, recorder: Flow, x: Value, sharing: Sharing | None = None) -> Value:
        for name, component, output_norm in (
            ("self_attn", self.attention, self.attention_output_norm),
            ("mlp", self.feed_forward, self.feed_forward_output_norm),
        ):
            assert isinstance(component, Component)
            y = recorder.part(name, component, recorder.part(f"{name}_pre_norm", self.norm, x))
            recorder.hold(x=x, y=y)
            y = recorder.part(f"{name}_post_norm", output_norm, y)
            recorder.hold(y=y)
            with recorder.scope(f"{name}_residual_gate", kind="residual"):
                gate_weight = recorder.act(recorder.vector("", *x.axes), "sigmoid")
                x = recorder.add(recorder.mul(x, gate_weight), recorder.mul(y, gate_weight))
            recorder.hold(x=x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
        network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        layer = cls(
            attention=attention,
            feed_forward=network,
            norm=Norm(type="rmsnorm"),
            attention_output_norm=Norm(type="rmsnorm", weight=False),
            feed_forward_output_norm=Norm(type="rmsnorm"),
        )
        return [layer, layer.model_copy(update={"attention_output_norm": Norm(type="layernorm")})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ResidualGateReference(nn.Module):
        """The layer with gated residual sums. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ResidualGateLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            output_norms = (spec.attention_output_norm, spec.feed_forward_output_norm)
            sublayers = (("self_attn", spec.attention), ("mlp", spec.feed_forward))
            for (name, component), output_norm in zip(sublayers, output_norms, strict=True):
                assert isinstance(component, Component)
                self.add_module(f"{name}_pre_norm", spec.norm.reference(model_properties))
                self.add_module(name, component.reference(model_properties))
                self.add_module(f"{name}_post_norm", output_norm.reference(model_properties))
                self.add_module(f"{name}_residual_gate", vector(torch.zeros(model_properties.hidden_size)))

        def forward(self, x: Tensor, forward_pass: ForwardPass) -> Tensor:
            for name in ("self_attn", "mlp"):
                y = self.get_submodule(name)(self.get_submodule(f"{name}_pre_norm")(x), forward_pass)
                y = self.get_submodule(f"{name}_post_norm")(y)
                gate: Any = self.get_submodule(f"{name}_residual_gate")
                gate_weight = torch.sigmoid(gate.weight)
                residual_share = torch.sqrt((1 - gate_weight) * (1 + gate_weight))
                x = residual_share * x + gate_weight * y
            return x

    return ResidualGateReference
