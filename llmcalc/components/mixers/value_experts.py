"""Routed value projections (MoVA): a token's values are a weighted sum of its selected projections.

K2 Horizon 2026 (Institute of Foundation Models); transformers main: models/k2_horizon, `K2HorizonMoVAAttention`. All
ranks have all projections, of which tensor parallelism divides the heads (SGLang: layers/mova.py).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, ClassVar

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Experts, ModelProperties, Part, PartWitness, TopK, check_top_k
from ..networks.expert_dispatch import expert_dispatch_class, expert_group_ends, expert_map_class
from ..networks.feed_forward import Activation, activate
from ..networks.router import AnyRouter, LinearRouter
from ..runtime import PassState

if TYPE_CHECKING:
    from torch import Tensor, nn


class ValueExperts(Part):
    """Value projections, of which a router selects a few for each token.

    num_experts: the number of projections.
    num_experts_per_tok: the number of projections of each token.
    hidden_act: the activation of each projection's output, `silu` by default.
    router: the part that selects the projections; a linear layer with a softmax by default.
    """

    formula_source: ClassVar[str] = "K2 Horizon 2026"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    kind: ClassVar[str] = "attention"

    num_experts: Experts
    num_experts_per_tok: TopK
    hidden_act: Activation = "silu"
    router: AnyRouter = LinearRouter()

    def check_fields(self) -> None:
        check_top_k(self.num_experts, self.num_experts_per_tok)
        self.router.check_groups(self.num_experts, self.num_experts_per_tok)
        if self.router.type != "linear":
            raise ValueError(f"router.type: '{self.router.type}' selects networks, not values; expected 'linear'")

    def flow(self, recorder: Flow, x: Value, heads: Axis, head_axis: Axis) -> Value:
        """Records the computation of the values of all heads. x: the input of the values."""
        expert_axis, top_k = Axis("value_experts", self.num_experts), self.num_experts_per_tok
        expert_weights, top_experts = self.router.flow(recorder, x, expert_axis, top_k, expert_axis.size)
        recorder.hold(weights=expert_weights, chosen=top_experts)
        routed_rows = recorder.dispatch(x, top_experts, expert_axis, top_k, self.router.expert_groups)
        recorder.hold(rows=routed_rows)
        expert_values = recorder.act(
            recorder.experts("v_experts", routed_rows, expert_axis, top_k, heads, head_axis), self.hidden_act
        )
        recorder.hold(y=expert_values)
        return recorder.combine(
            expert_values, expert_weights, expert_axis, top_k, in_float32=self.router.float32_weights
        )

    def reference(self, model_properties: ModelProperties, width: int) -> nn.Module:
        """Builds the value projections, from the hidden size to all value heads, and the router."""
        return _reference_class()(self, model_properties, width)


@cache
def _reference_class() -> type[nn.Module]:
    from torch import nn

    class ValueExpertsReference(nn.Module):
        """Sums each token's selected value projections. x: [batch, tokens, hidden] → [batch, tokens, heads · size]."""

        def __init__(self, spec: ValueExperts, model_properties: ModelProperties, values_width: int) -> None:
            super().__init__()
            self.spec = spec
            expert_count, top_k = spec.num_experts, spec.num_experts_per_tok
            self.routing = spec.router.reference(model_properties, expert_count, top_k, expert_count)
            for module_name, module in self.routing.modules.items():
                self.add_module(module_name, module)
            self.v_experts = expert_map_class()(expert_count, model_properties.hidden_size, values_width, False)

        def forward(self, x: Tensor, pass_state: PassState) -> Tensor:
            expert_weights, top_experts = self.routing(x, pass_state)
            dispatcher = expert_dispatch_class()(top_experts, pass_state.grouped_experts, self.routing.float32_weights)
            routed_rows = dispatcher.copy_rows_to_experts(x)
            group_ends = expert_group_ends(dispatcher.expert, self.spec.num_experts) if dispatcher.is_grouped else None
            expert_values = activate(self.spec.hidden_act, self.v_experts(routed_rows, dispatcher.expert, group_ends))
            del routed_rows
            return dispatcher.combine_outputs(expert_values, expert_weights)

    return ValueExpertsReference
