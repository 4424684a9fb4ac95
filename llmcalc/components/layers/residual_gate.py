"""A layer whose residual sums are weighted: α · x + β · y, with a learned gate per feature.

transformers: models/muse_spark (`MuseSparkResidualGate`, `MuseSparkTextDecoderLayer`).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...flow.record import Flow
from ...flow.value import Value
from ..base import ModelProperties
from ..norm import Norm
from ..runtime import PassState, vector_module
from .block import LayerSharing
from .whole_layer import WholeLayer, example_sublayers, pre_norm_reference_class

if TYPE_CHECKING:
    from torch import Tensor, nn


class ResidualGateLayer(WholeLayer):
    """Attention and a feed-forward network, with norms before and after each, and a gated residual sum.

    The gate g of a feature gives β = σ(g) and α = √(σ(−g) · (1 + β)), so that α² + β² = 1.

    norm: the norm before each sublayer.
    attention_output_norm: the norm of attention's output.
    feed_forward_output_norm: the norm of the network's output.
    """

    formula_source: ClassVar[str] = "Muse Spark 2026"
    is_plain_transformer_layer: ClassVar[bool] = False

    type: Literal["residual_gate"] = "residual_gate"
    attention_output_norm: Norm
    feed_forward_output_norm: Norm
    norm_placement: Literal["sandwich"] = "sandwich"

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        for sublayer_name, component, output_norm in (
            ("self_attn", self.attention, self.attention_output_norm),
            ("mlp", self.feed_forward, self.feed_forward_output_norm),
        ):
            sublayer_output = self._record_sublayer(recorder, sublayer_name, component, x)
            recorder.hold(x=x, y=sublayer_output)
            sublayer_output = recorder.part(f"{sublayer_name}_post_norm", output_norm, sublayer_output)
            recorder.hold(y=sublayer_output)
            with recorder.scope(f"{sublayer_name}_residual_gate", kind="residual"):
                gate_weight = recorder.act(recorder.vector("", *x.axes), "sigmoid")
                x = recorder.add(recorder.mul(x, gate_weight), recorder.mul(sublayer_output, gate_weight))
            recorder.hold(x=x)
        return x

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        norm_without_weights, weighted_norm = Norm(type="rmsnorm", weight=False), Norm(type="rmsnorm")
        layer = cls(
            **example_sublayers(), attention_output_norm=norm_without_weights, feed_forward_output_norm=weighted_norm
        )
        return [layer, layer.model_copy(update={"attention_output_norm": Norm(type="layernorm")})]


@cache
def _reference_class() -> type[nn.Module]:
    import torch

    class ResidualGateLayerReference(pre_norm_reference_class()):  # type: ignore[misc]
        """Runs sublayers with gated residual sums α · x + β · y. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ResidualGateLayer, model_properties: ModelProperties) -> None:
            super().__init__(spec, model_properties)
            for sublayer_name, norm in (
                ("self_attn", spec.attention_output_norm),
                ("mlp", spec.feed_forward_output_norm),
            ):
                self.add_module(f"{sublayer_name}_post_norm", norm.reference(model_properties))
                self.add_module(
                    f"{sublayer_name}_residual_gate", vector_module(torch.zeros(model_properties.hidden_size))
                )

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            for sublayer_name in ("self_attn", "mlp"):
                sublayer_output = self._sublayer_output(sublayer_name, x, pass_state)
                sublayer_output = self.get_submodule(f"{sublayer_name}_post_norm")(sublayer_output)
                gate: Any = self.get_submodule(f"{sublayer_name}_residual_gate")
                gate_weight = torch.sigmoid(gate.weight)
                residual_weight = torch.sqrt((1 - gate_weight) * (1 + gate_weight))
                x = residual_weight * x + gate_weight * sublayer_output
            return x

    return ResidualGateLayerReference
