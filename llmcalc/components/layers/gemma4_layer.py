"""Gemma 4's layer: sandwich norms, an optional dense network parallel to experts, an optional per-layer embedding.

transformers: models/gemma4 (`Gemma4TextDecoderLayer`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Component, HeadSizes, ModelProperties, PartWitness
from ..mixers.attention import Attention
from ..networks.feed_forward import FeedForward
from ..networks.moe import MoE
from ..networks.router import LinearRouter
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState
from .block import LayerSharing
from .per_layer_embeddings import PerLayerGate
from .whole_layer import WholeLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class Gemma4Layer(WholeLayer):
    """Attention and a feed-forward network, each with norms before and after; a buffer scales the layer's output.

    dense: a dense network beside the experts, with its own norms and one on the sum; the router then reads the residual
        stream. None by default.
    per_layer_input: how the layer uses its per-layer embedding; none by default.
    """

    formula_source: ClassVar[str] = "Gemma 4 2026"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["gemma4"] = "gemma4"
    dense: FeedForward | None = None
    per_layer_input: PerLayerGate | None = None
    norm_placement: Literal["sandwich"] = "sandwich"

    def check_fields(self) -> None:
        super().check_fields()
        if self.dense is not None and not isinstance(self.feed_forward, MoE):
            raise ValueError("dense: requires experts beside it; expected feed_forward.type = 'moe'")

    def networks(self) -> list[Any]:
        return [self.feed_forward, *([] if self.dense is None else [self.dense])]

    def scaled(
        self, hidden_size: int, heads: Callable[[HeadSizes], HeadSizes], scale_width: Callable[[int], Number]
    ) -> Self:
        layer = super().scaled(hidden_size, heads, scale_width)
        if self.dense is None:
            return layer
        return layer.model_copy(update={"dense": self.dense.with_scaled_widths(scale_width)})

    def required_stack_fields(self) -> Mapping[str, Mapping[str, Any]]:
        return {
            **super().required_stack_fields(),
            **({} if self.per_layer_input is None else self.per_layer_input.required_stack_fields()),
        }

    def dependency_field(self) -> str:
        return super().dependency_field() if self.per_layer_input is None else "per_layer_input"

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        x = recorder.add(x, self._normed_sublayer(recorder, "self_attn", self.attention, x))
        if self.dense is None:
            x = recorder.add(x, self._normed_sublayer(recorder, "mlp", self.feed_forward, x))
        else:
            network_sum = self._normed_sublayer(recorder, "dense", self.dense, x)
            network_sum = recorder.add(
                network_sum, self._normed_sublayer(recorder, "mlp", self.feed_forward, x, router_input=x)
            )
            recorder.hold(both=network_sum)
            x = recorder.add(x, recorder.part("sum_post_norm", self.norm, network_sum))
        if self.per_layer_input is not None:
            x = recorder.add(x, recorder.part("per_layer_input", self.per_layer_input, x, norm=self.norm))
        return recorder.mul(x, recorder.buffer("scale", Axis("one", 1)))

    def _normed_sublayer(
        self, recorder: Flow, sublayer_name: str, component: Any, x: Value, **router_input: Any
    ) -> Value:
        """Returns the output of a sublayer with norms before and after."""
        sublayer_output = recorder.part(
            sublayer_name, component, recorder.part(f"{sublayer_name}_pre_norm", self.norm, x), **router_input
        )
        return recorder.part(f"{sublayer_name}_post_norm", self.norm, sublayer_output)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        """Returns examples without per-layer embeddings, which the stack's examples include."""
        rmsnorm = Norm(type="rmsnorm")
        attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
        dense_network = FeedForward(intermediate_size=20, hidden_act="gelu_tanh", gated=True)
        expert = FeedForward(intermediate_size=16, hidden_act="gelu_tanh", gated=True)
        router = LinearRouter(norm=rmsnorm, expert_scale=True)
        experts = MoE(num_experts=5, num_experts_per_tok=2, expert=expert, router=router)
        return [
            cls(attention=attention, feed_forward=dense_network, norm=rmsnorm),
            cls(attention=attention, feed_forward=experts, dense=dense_network, norm=rmsnorm),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class OutputScale(nn.Module):
        value: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("value", torch.ones(1))

    class Gemma4LayerReference(nn.Module):
        """Runs sublayers between norms and scales the sum, for Gemma 4. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: Gemma4Layer, model_properties: ModelProperties) -> None:
            super().__init__()
            self.scale = OutputScale()
            for sublayer_name, component in (
                ("self_attn", spec.attention),
                ("dense", spec.dense),
                ("mlp", spec.feed_forward),
            ):
                if isinstance(component, Component):
                    self.add_module(sublayer_name, component.reference(model_properties))
                    self.add_module(f"{sublayer_name}_pre_norm", spec.norm.reference(model_properties))
                    self.add_module(f"{sublayer_name}_post_norm", spec.norm.reference(model_properties))
            if spec.dense is not None:
                self.sum_post_norm = spec.norm.reference(model_properties)
            if spec.per_layer_input is not None:
                self.per_layer_input = spec.per_layer_input.reference(model_properties, spec.norm)

        def _normed_sublayer(
            self, sublayer_name: str, x: Tensor, pass_state: PassState, **router_input: Tensor
        ) -> Tensor:
            pre_norm, component, post_norm = (
                self.get_submodule(module_name)
                for module_name in (f"{sublayer_name}_pre_norm", sublayer_name, f"{sublayer_name}_post_norm")
            )
            return post_norm(component(pre_norm(x), pass_state, **router_input))

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = x + self._normed_sublayer("self_attn", x, pass_state)
            if hasattr(self, "dense"):
                network_sum = self._normed_sublayer("dense", x, pass_state) + self._normed_sublayer(
                    "mlp", x, pass_state, router_input=x
                )
                x = x + self.sum_post_norm(network_sum)
            else:
                x = x + self._normed_sublayer("mlp", x, pass_state)
            if hasattr(self, "per_layer_input"):
                x = x + self.per_layer_input(x, pass_state)
            return x * self.scale.value

    return Gemma4LayerReference
