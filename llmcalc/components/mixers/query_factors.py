"""The projection of attention's queries in two low-rank factors, with a norm between the factors (Step 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from ...flow.axis import Axis
from ...flow.record import Flow
from ...flow.value import Value
from ..base import TORCH_WITNESS, InnerWidth, ModelProperties, Part, PartWitness
from ..norm import Norm

if TYPE_CHECKING:
    from torch import nn


class QueryFactors(Part):
    """Low-rank queries: a projection to `rank` features, a norm, and then a projection to the heads.

    rank: the rank.
    norm: the norm between the two projections, an RMSNorm by default.
    """

    witness: ClassVar[PartWitness] = TORCH_WITNESS

    rank: InnerWidth
    norm: Norm = Norm(type="rmsnorm")

    def flow(self, recorder: Flow, x: Value) -> Value:
        """Records the operations of the first of the two low-rank query projections, and the norm after it."""
        low_rank_query = recorder.part(
            "q_a_norm", self.norm, recorder.linear("q_a_proj", x, Axis("query_rank", self.rank))
        )
        recorder.hold(low=low_rank_query)
        return low_rank_query

    def reference(self, model_properties: ModelProperties) -> tuple[nn.Module, nn.Module]:
        """Builds the first query projection and the norm as named modules."""
        from torch import nn

        return nn.Linear(model_properties.hidden_size, self.rank, bias=False), self.norm.reference(
            ModelProperties(self.rank)
        )
