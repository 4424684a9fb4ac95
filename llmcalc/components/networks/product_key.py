"""Product-key experts: a very large number of experts of one hidden unit (Doge's cross-domain mixture of experts).

Shi et al. 2024 (arXiv:2412.11834). Experts are arranged in a grid of num_keys × num_keys. A linear layer scores every
row and every column of the grid, and an expert's score is the sum of its row's and its column's (product keys: Lample
et al. 2019, arXiv:1907.05242). An expert is one input vector and one output vector (He 2024, arXiv:2407.04153).
transformers: models/doge (`DogeCDMoE`). That class mixes up the rows and columns of different tokens in a pass over
several tokens; here each token uses its own, at the same cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from ... import ops
from ...flow.axis import Axis, JoinedShapes
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, Experts, ModelProperties, Network, PartWitness, TopK, UnscalableError
from ..runtime import PassState
from .feed_forward import Activation, FeedForward, activate

if TYPE_CHECKING:
    from torch import Tensor, nn


class ProductKeyMoE(Network):
    """Experts of one hidden unit each, selected by product keys, in parallel to a dense feed-forward network.

    num_experts: the number of experts; each has one input vector and one output vector.
    num_keys: the number of rows, and of columns, of the grid of experts. Experts beyond num_keys² are never selected.
    num_experts_per_tok: the number of experts per token.
    hidden_act: the activation of each expert.
    shared_expert: the feed-forward network that every token uses.
    """

    formula_source: ClassVar[str] = "Shi et al. 2024 (Doge)"
    witness: ClassVar[PartWitness] = TORCH_WITNESS
    node_name: ClassVar[str] = "mlp"
    kind: ClassVar[str] = "experts"
    is_mixture_of_experts: ClassVar[bool] = True

    type: Literal["product_key_moe"] = "product_key_moe"
    num_experts: Experts
    num_keys: Experts
    num_experts_per_tok: TopK
    hidden_act: Activation
    shared_expert: FeedForward

    def check_fields(self) -> None:
        if self.num_keys**2 > self.num_experts:
            raise ValueError(
                f"num_keys: {self.num_keys} rows and columns are more than num_experts {self.num_experts}; "
                "expected at most its root"
            )
        if self.num_experts_per_tok > self.num_keys**2:
            raise ValueError(
                f"num_experts_per_tok: {self.num_experts_per_tok} is more than num_keys² = {self.num_keys**2}"
            )

    def active_width(self) -> int:
        return self.num_experts_per_tok + self.shared_expert.intermediate_size

    def activation(self) -> str:
        return self.shared_expert.activation()

    def with_scaled_widths(self, scale_width: Callable[[Any], Any]) -> Self:
        raise UnscalableError(
            "experts of one unit each are a number and no width; expected a dense network or other experts"
        )

    def flow(self, recorder: Flow, x: Value) -> Value:
        key_axis, top_k = Axis("keys", self.num_keys), self.num_experts_per_tok
        expert_weights, top_units = recorder.product_keys(
            recorder.linear("router", x, JoinedShapes(((key_axis,), (key_axis,))), kind="router"), key_axis, top_k
        )
        expert_rows = ops.ExpertRows(self.num_experts, top_k, x.width, x.rows)
        recorder.hold(weights=expert_weights, chosen=top_units)
        with recorder.scope("experts", kind="experts", source="He 2024, §2"):
            hidden_units = recorder.act(
                recorder.core("down_embed", expert_rows, x, top_units, axes=expert_weights.axes), self.hidden_act
            )
            expert_outputs = recorder.core(
                "up_embed", expert_rows, recorder.mul(hidden_units, expert_weights), top_units, axes=x.axes
            )
        recorder.hold(y=expert_outputs)
        return recorder.add(expert_outputs, recorder.part("shared_expert", self.shared_expert, x, kind="shared_expert"))

    def describe(self, hidden_size: int) -> str:
        return (
            f"MoE {self.num_experts_per_tok} of {self.num_experts} × 1 unit + shared "
            f"{self.shared_expert.describe(hidden_size)}"
        )

    def reference(self, model_properties: ModelProperties) -> nn.Module:
        return _reference_class()(self, model_properties)

    @classmethod
    def examples(cls) -> list[Self]:
        swiglu = FeedForward(intermediate_size=28, hidden_act="silu", gated=True, down_bias=True)
        ungated_network = FeedForward(intermediate_size=20, hidden_act="relu")
        return [
            cls(num_experts=16, num_keys=4, num_experts_per_tok=3, hidden_act="silu", shared_expert=swiglu),
            cls(num_experts=11, num_keys=3, num_experts_per_tok=1, hidden_act="gelu", shared_expert=ungated_network),
        ]


@cache
def _reference_class() -> type[nn.Module]:
    import torch
    from torch import nn

    class ExpertVectors(nn.Module):
        def __init__(self, expert_count: int, hidden_size: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(expert_count, hidden_size) * hidden_size**-0.5)

    class InputProducts(ExpertVectors):
        """Multiplies tokens by the input vectors of their experts. x: [batch, tokens, hidden] → [batch, tokens, k]."""

        def forward(self, x: Tensor, top_units: Tensor) -> Tensor:
            return (nn.functional.embedding(top_units, self.weight) @ x[..., None])[..., 0]

    class WeightedOutputSum(ExpertVectors):
        """Sums experts' output vectors, weighted by hidden units [batch, tokens, k] → [batch, tokens, hidden]."""

        def forward(self, hidden_units: Tensor, top_units: Tensor) -> Tensor:
            return (hidden_units[..., None, :] @ nn.functional.embedding(top_units, self.weight))[..., 0, :]

    class ProductKeyExperts(nn.Module):
        def __init__(self, spec: ProductKeyMoE, hidden_size: int) -> None:
            super().__init__()
            self.act = spec.hidden_act
            self.down_embed = InputProducts(spec.num_experts, hidden_size)
            self.up_embed = WeightedOutputSum(spec.num_experts, hidden_size)

        def forward(self, x: Tensor, top_units: Tensor, expert_weights: Tensor) -> Tensor:
            return self.up_embed(activate(self.act, self.down_embed(x, top_units)) * expert_weights, top_units)

    class ProductKeyReference(nn.Module):
        """Runs a dense network and experts selected by product keys. x: [batch, tokens, hidden] → same shape."""

        def __init__(self, spec: ProductKeyMoE, model_properties: ModelProperties) -> None:
            super().__init__()
            self.top_k = spec.num_experts_per_tok
            self.router = nn.Linear(model_properties.hidden_size, 2 * spec.num_keys, bias=False)
            self.experts = ProductKeyExperts(spec, model_properties.hidden_size)
            self.shared_expert = spec.shared_expert.reference(model_properties)

        def forward(self, x: Tensor, pass_state: PassState | None = None) -> Tensor:
            expert_weights, top_units = self.route_tokens(x)
            expert_sum = self.experts(x, top_units, expert_weights)
            return expert_sum + self.shared_expert(x)

        def route_tokens(self, x: Tensor) -> tuple[Tensor, Tensor]:
            """Returns the weights and indices of each token's experts, [batch, tokens, top_k]."""
            row_scores, column_scores = self.router(x).float().chunk(2, -1)
            scores, top_units = (row_scores[..., None] + column_scores[..., None, :]).flatten(2).topk(self.top_k, -1)
            return scores.softmax(-1).to(x.dtype), top_units

    return ProductKeyReference
