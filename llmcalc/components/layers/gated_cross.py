"""A cross-attention layer to image features between the layers of a decoder.

Cross-attention and a feed-forward network, each multiplied by the tanh of a learned gate (Flamingo: Alayrac 2022,
arXiv:2204.14198, §2.2; IDEFICS: Laurençon 2023, arXiv:2306.16527). On text alone Llama 3.2 Vision skips the layer
(Grattafiori 2024, arXiv:2407.21783, §7); IDEFICS runs it with no image features, so without keys and values.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...evidence import UNTESTED
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.tree import Role
from ...flow.value import Value
from ...workload.rows import SOURCE_TOKENS
from ..base import TORCH_WITNESS, Component, Flag, InnerWidth, ModelProperties, PartWitness
from ..mixers.attention import Attention
from ..mixers.qk_norm import QKNorm
from ..networks.feed_forward import FeedForward
from ..norm import Norm
from ..runtime import PassState, vector_module
from .block import LayerSharing
from .whole_layer import PreNormLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class Gate(Component):
    """A learned gate, one number or one per feature, whose tanh multiplies a sublayer's output.

    per_feature: whether each feature has a number of its own, false by default.
    """

    per_feature: Flag = False

    def flow(self, recorder: Flow, x: Value) -> Value:
        axes = x.axes if self.per_feature else (Axis("gate", 1),)
        return recorder.vector("", *axes)


class GatedCrossLayer(PreNormLayer):
    """Cross-attention to image features and a feed-forward network, both skipped for text without images.

    attention: attention whose keys and values are made of image features.
    source_size: the width of the image features, by default the layer's.
    feed_forward_norm: the norm before the network, by default one like that before attention.
    gate_per_feature: whether each feature has a gate of its own; by default a sublayer has one number.
    """

    formula_source: ClassVar[str] = "Alayrac et al. 2022, §2.2"
    runs_on_text: ClassVar[bool] = False
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["gated_cross"] = "gated_cross"
    attention: Attention
    source_size: InnerWidth | None = None
    feed_forward_norm: Norm | None = None
    gate_per_feature: Flag = False

    def check_fields(self) -> None:
        super().check_fields()
        self.attention.check_cross_attention()

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        source_axes = x.axes if self.source_size is None else (Axis("source", self.source_size),)
        memory = (
            recorder.absent("image features", *source_axes) if self.runs_on_text else Value(SOURCE_TOKENS, source_axes)
        )
        gate, node_role = Gate(per_feature=self.gate_per_feature), self._node_role
        sublayers: tuple[tuple[str, Norm, Component, str, dict[str, Any]], ...] = (
            ("cross_attn", self.norm, self.attention, "cross_attention", {"memory": memory, "kind": "cross_attention"}),
            ("mlp", self.feed_forward_norm or self.norm, self.feed_forward, "feed_forward", {}),
        )
        for sublayer_name, norm, component, node_kind, arguments in sublayers:
            residual_branch = recorder.part(f"{sublayer_name}_pre_norm", norm, x, role=node_role)
            residual_branch = recorder.part(sublayer_name, component, residual_branch, role=node_role, **arguments)
            gate_value = recorder.part(f"{sublayer_name}_gate", gate, x, role=node_role, kind=node_kind)
            if self.runs_on_text:
                recorder.hold(x=x, y=residual_branch)
                x = recorder.add(x, recorder.mul(residual_branch, recorder.act(gate_value, "tanh")))
                recorder.hold(x=x)
        return x

    @property
    def _node_role(self) -> Role:
        """The role of the layer's nodes in counts, which depends on whether the nodes run for text without images."""
        return "own" if self.runs_on_text else "idle"

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        rmsnorm = Norm(type="rmsnorm")
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, qk_norm=QKNorm(norm=rmsnorm))
        network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        layer = cls(attention=attention, feed_forward=network, norm=rmsnorm)
        wide_source_layer = layer.model_copy(update={"source_size": 24})
        layernorm_layer = layer.model_copy(update={"feed_forward_norm": Norm(type="layernorm")})
        return [
            layer,
            wide_source_layer,
            layernorm_layer,
            wide_source_layer.model_copy(update={"gate_per_feature": True}),
        ]


class GatedCrossTextLayer(GatedCrossLayer):
    """Cross-attention to image features and a feed-forward network, both also run for text without images.

    Attention then has no keys and values, and gives zeros.
    """

    runs_on_text: ClassVar[bool] = True
    witness: ClassVar[PartWitness] = UNTESTED

    type: Literal["gated_cross_text"] = "gated_cross_text"  # type: ignore[assignment]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class GatedCrossLayerReference(nn.Module):
        """Runs gated cross-attention to images and a gated network for a text that has no images.

        A layer that texts without images skip returns x. x: [batch, tokens, hidden] → same shape.
        """

        def __init__(self, spec: GatedCrossLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            hidden_size = model_properties.hidden_size
            cross_properties = ModelProperties(
                hidden_size, model_properties.is_causal, is_cross_attention=True, source_size=spec.source_size
            )
            self.runs = isinstance(spec, GatedCrossTextLayer)
            self.source_size = spec.source_size or hidden_size
            gate_size = hidden_size if spec.gate_per_feature else 1
            for sublayer_name, norm, component, part_properties in (
                ("cross_attn", spec.norm, spec.attention, cross_properties),
                ("mlp", spec.feed_forward_norm or spec.norm, spec.feed_forward, model_properties),
            ):
                self.add_module(f"{sublayer_name}_pre_norm", norm.reference(model_properties))
                self.add_module(sublayer_name, component.reference(part_properties))
                self.add_module(f"{sublayer_name}_gate", vector_module(torch.zeros(gate_size)))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            if not self.runs:
                return x
            pass_without_image = replace(pass_state, encoder_output=x.new_zeros(x.shape[0], 0, self.source_size))
            for sublayer_name in ("cross_attn", "mlp"):
                sublayer_output = self.get_submodule(sublayer_name)(
                    self.get_submodule(f"{sublayer_name}_pre_norm")(x), pass_without_image
                )
                gate: Any = self.get_submodule(f"{sublayer_name}_gate")
                x = x + sublayer_output * torch.tanh(gate.weight)
            return x

    return GatedCrossLayerReference
