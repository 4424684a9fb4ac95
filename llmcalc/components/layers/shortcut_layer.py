"""LongCat-Flash's layer: attention and dense network twice, with experts in parallel from the first attention on.

The experts read the input of the first dense network. Their output is added at the end of the layer, so the second
attention and the second network can run while tokens are sent to experts. LongCat-Flash (Meituan 2025,
arXiv:2509.01322), §2.2, after Cai et al. 2024 (arXiv:2404.05019). transformers: models/longcat_flash
(`LongcatFlashDecoderLayer`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ...algebra import Number
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, HeadSizes, ModelProperties, PartWitness
from ..mixers.attention import Attention
from ..mixers.mla import MLA
from ..networks.feed_forward import FeedForward
from ..networks.moe import IdentityExperts, MoE
from ..networks.router import LinearRouter
from ..norm import Norm
from ..rope import Rope
from ..runtime import PassState
from .block import LayerSharing
from .whole_layer import PreNormLayer

if TYPE_CHECKING:
    from torch import Tensor, nn


class ShortcutLayer(PreNormLayer):
    """Attention, dense network, attention, dense network, each pre-norm; experts run in parallel to the last three.

    attention: the two attentions, equal in shape, each with its own weights and its own cache.
    dense: the two dense networks, equal in shape, each with its own weights.
    feed_forward: the experts.
    """

    formula_source: ClassVar[str] = "LongCat-Flash 2025, §2.2"
    witness: ClassVar[PartWitness] = TORCH_WITNESS

    type: Literal["shortcut"] = "shortcut"
    dense: FeedForward

    def check_fields(self) -> None:
        super().check_fields()
        if not isinstance(self.feed_forward, MoE):
            raise ValueError("feed_forward.type: the shortcut requires experts; expected 'moe'")

    def networks(self) -> list[Any]:
        return [self.feed_forward, self.dense]

    def scaled(
        self, hidden_size: int, heads: Callable[[HeadSizes], HeadSizes], scale_width: Callable[[int], Number]
    ) -> Self:
        dense = self.dense.with_scaled_widths(scale_width)
        return super().scaled(hidden_size, heads, scale_width).model_copy(update={"dense": dense})

    def flow(self, recorder: Flow, x: Value, layer_sharing: LayerSharing | None = None) -> Value:
        x, normed_x = self._attention_sublayer(recorder, x, 0)
        expert_output = recorder.part("mlp", self.feed_forward, normed_x)
        recorder.hold(read=normed_x, aside=expert_output)
        x = recorder.add(x, recorder.part("dense", self.dense, normed_x, list_index=0))
        recorder.hold(x=x)
        x, normed_x = self._attention_sublayer(recorder, x, 1)
        return recorder.add(recorder.add(x, recorder.part("dense", self.dense, normed_x, list_index=1)), expert_output)

    def _attention_sublayer(self, recorder: Flow, x: Value, sublayer_index: int) -> tuple[Value, Value]:
        """Returns the residual stream after one of the two attentions, and the input of the next dense network."""
        normed_x = recorder.part("self_attn_pre_norm", self.norm, x, list_index=sublayer_index)
        x = recorder.add(x, recorder.part("self_attn", self.attention, normed_x, list_index=sublayer_index))
        recorder.hold(x=x)
        return x, recorder.part("dense_pre_norm", self.norm, x, list_index=sublayer_index)

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        rmsnorm = Norm(type="rmsnorm")
        grouped_attention = Attention(num_attention_heads=4, num_key_value_heads=2, position=Rope())
        dense_network = FeedForward(intermediate_size=20, hidden_act="silu", gated=True)
        corrected_router, identity_experts = LinearRouter(score_correction="buffer"), IdentityExperts(zero_expert_num=3)
        narrow_network = FeedForward(intermediate_size=16, hidden_act="silu", gated=True)
        experts = MoE(
            num_experts=5,
            num_experts_per_tok=2,
            identity_experts=identity_experts,
            expert=narrow_network,
            router=corrected_router,
        )
        ungated_network = FeedForward(intermediate_size=16, hidden_act="gelu", up_bias=True, down_bias=True)
        small_mixture = MoE(num_experts=3, num_experts_per_tok=1, expert=ungated_network)
        return [
            cls(attention=MLA.examples()[1], feed_forward=experts, dense=dense_network, norm=rmsnorm),
            cls(
                attention=grouped_attention,
                feed_forward=small_mixture,
                dense=ungated_network,
                norm=Norm(type="layernorm"),
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ShortcutLayerReference(nn.Module):
        """Runs two attentions, two dense networks and parallel experts. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ShortcutLayer, model_properties: ModelProperties) -> None:
            super().__init__()
            sublayer_indices = range(2)
            self.self_attn = nn.ModuleList(spec.attention.reference(model_properties) for _ in sublayer_indices)
            self.self_attn_pre_norm = nn.ModuleList(spec.norm.reference(model_properties) for _ in sublayer_indices)
            self.dense = nn.ModuleList(spec.dense.reference(model_properties) for _ in sublayer_indices)
            self.dense_pre_norm = nn.ModuleList(spec.norm.reference(model_properties) for _ in sublayer_indices)
            self.mlp = spec.feed_forward.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            x = x + self.self_attn[0](self.self_attn_pre_norm[0](x), pass_state)
            normed_x = self.dense_pre_norm[0](x)
            expert_output = self.mlp(normed_x, pass_state)
            x = x + self.dense[0](normed_x, pass_state)
            x = x + self.self_attn[1](self.self_attn_pre_norm[1](x), pass_state)
            return x + self.dense[1](self.dense_pre_norm[1](x), pass_state) + expert_output

    return ShortcutLayerReference
