"""Grove MoE: groups of routed experts, where each group has a smaller adjugate expert.

Wu et al. 2025 (arXiv:2508.07785), §3. Each selected expert of a token brings the adjugate expert of its group, with its
own weight. The published class (modeling_qwen3_moe.py of inclusionAI/GroveMoE) runs the adjugate expert once for each
selected expert, so twice where two of them are of one group; that is counted here. An implementation that runs it once
does less, depending on the data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeAlias

from ...algebra import Number
from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import Experts, ModelProperties, Network, SizeSymbol, TopK, check_divisor, check_top_k
from ..runtime import PassState
from .expert_dispatch import expert_dispatch_class
from .feed_forward import FeedForward
from .moe import check_expert, record_expert_networks, routed_experts_reference_class
from .router import LinearRouter

if TYPE_CHECKING:
    from torch import Tensor, nn

GroupSize: TypeAlias = Annotated[int, SizeSymbol("g")]


class GroveMoE(Network):
    """Routed experts in groups, with an adjugate expert for each group.

    num_experts: the number of routed experts.
    num_experts_per_tok: the number of experts per token.
    experts_per_group: the number of experts in a group.
    expert: the feed-forward network of one routed expert.
    adjugate_expert: the feed-forward network of one adjugate expert.
    router: the router, linear with a softmax by default.
    """

    formula_source: ClassVar[str] = "Wu et al. 2025 (arXiv:2508.07785), §3"
    node_name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "experts"
    is_mixture_of_experts: ClassVar[bool] = True

    type: Literal["grove_moe"] = "grove_moe"
    num_experts: Experts
    num_experts_per_tok: TopK
    experts_per_group: GroupSize
    expert: FeedForward
    adjugate_expert: FeedForward
    router: LinearRouter = LinearRouter()

    def check_fields(self) -> None:
        check_top_k(self.num_experts, self.num_experts_per_tok)
        self.router.check_groups(self.num_experts, self.num_experts_per_tok)
        check_divisor("experts_per_group", self.experts_per_group, "num_experts", self.num_experts)
        check_expert(self.expert)
        check_expert(self.adjugate_expert)

    def activation(self) -> str:
        return self.expert.usual_name

    def active_width(self) -> int:
        return self.num_experts_per_tok * (self.expert.intermediate_size + self.adjugate_expert.intermediate_size)

    def with_scaled_widths(self, scale_width: Callable[[int], Number]) -> Self:
        networks = {"expert": self.expert, "adjugate_expert": self.adjugate_expert}
        return self.model_copy(
            update={network_name: network.with_scaled_widths(scale_width) for network_name, network in networks.items()}
        )

    def flow(self, recorder: Flow, x: Value) -> Value:
        top_k, expert_axis = self.num_experts_per_tok, Axis("experts", self.num_experts)
        group_axis = Axis("experts", self.num_experts // self.experts_per_group)  # divided as experts are
        expert_weights, top_experts = self.router.flow(recorder, x, expert_axis, top_k, self.num_experts)
        group_outputs = []
        for network_name, network, network_axis in (
            ("experts", self.expert, expert_axis),
            ("chunk_experts", self.adjugate_expert, group_axis),
        ):
            routed_rows = recorder.dispatch(x, top_experts, network_axis, top_k, self.router.expert_groups)
            with recorder.scope(network_name, kind="experts", source=self.formula_source):
                expert_outputs = record_expert_networks(recorder, network, routed_rows, network_axis, top_k, x.axes)
            group_outputs.append(
                recorder.combine(
                    expert_outputs, expert_weights, network_axis, top_k, in_float32=self.router.float32_weights
                )
            )
        return recorder.add(*group_outputs)

    def describe(self, hidden_size: int) -> str:
        expert_group_count = self.num_experts // self.experts_per_group
        return (
            f"MoE {self.num_experts_per_tok} of {self.num_experts} × {self.expert.describe(hidden_size)} + adjugate "
            f"{expert_group_count} × {self.adjugate_expert.intermediate_size}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        swiglu, narrow_swiglu = (
            FeedForward(intermediate_size=ffn_width, hidden_act="silu", gated=True) for ffn_width in (16, 8)
        )
        return [
            cls(
                num_experts=6, num_experts_per_tok=2, experts_per_group=2, expert=swiglu, adjugate_expert=narrow_swiglu
            ),
            cls(
                num_experts=6, num_experts_per_tok=3, experts_per_group=3, expert=narrow_swiglu, adjugate_expert=swiglu
            ),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    RoutedExperts = routed_experts_reference_class()

    class GroveMoEReference(RoutedExperts):  # type: ignore[misc,valid-type]
        """Runs routed experts and the adjugate experts of their groups. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: GroveMoE, model_properties: ModelProperties) -> None:
            hidden_size, expert_count, self.group = (
                model_properties.hidden_size,
                spec.num_experts,
                spec.experts_per_group,
            )
            router_module = spec.router.reference(
                model_properties, expert_count, spec.num_experts_per_tok, expert_count
            )
            super().__init__(router_module, spec.expert, expert_count, hidden_size)
            adjugate_experts = RoutedExperts(
                router_module, spec.adjugate_expert, expert_count // self.group, hidden_size
            )
            self.chunk_experts: Any = adjugate_experts.experts

        def forward(self, x: Tensor, pass_state: PassState | None = None) -> Tensor:
            expert_weights, top_experts = self.routing(x, pass_state)
            is_grouped = pass_state is not None and pass_state.grouped_experts
            expert_sums = []
            for networks, expert_indices in (
                (self.experts, top_experts),
                (self.chunk_experts, top_experts // self.group),
            ):
                dispatcher = expert_dispatch_class()(expert_indices, is_grouped, self.routing.float32_weights)
                routed_rows = networks(dispatcher.copy_rows_to_experts(x), dispatcher.expert, dispatcher.is_grouped)
                expert_sums.append(dispatcher.combine_outputs(routed_rows, expert_weights))
            return expert_sums[0] + 0.05 * expert_sums[1]

    return GroveMoEReference
