"""Linear layers that a rank computes for some of the tokens only: a part of the sequence, or received tokens."""

from __future__ import annotations

from fractions import Fraction

from ..algebra import Number, exact_div, floor_div
from ..frozen import frozen
from ..workload.run_config import RunConfig
from .linear import ExpertLinear, Linear
from .products import IdentityExperts


@frozen(slots=True)
class LinearOnRank(Linear):
    """A linear layer with an unsharded weight, which each tensor-parallel rank runs on a part of the tokens.

    rank_count: how many ranks divide the tokens.
    """

    rank_count: Number = 1

    def forward_flops(self, run_config: RunConfig) -> Number:
        return _divide_by_ranks(Linear.forward_flops(self, run_config), self.rank_count)

    def backward_flops(self, run_config: RunConfig) -> Number:
        return _divide_by_ranks(Linear.backward_flops(self, run_config), self.rank_count)


@frozen(slots=True)
class ExpertLinearOnRank(ExpertLinear):
    """The experts of one expert-parallel rank, under balanced routing.

    Each rank sends away its tokens' rows and gets as many from all others, so it computes its share of them.

    rank_count: over how many ranks the experts are divided.
    ranks_per_expert: over how many ranks one expert is divided.
    tensor_ranks: how many ranks of a tensor group share their tokens.
    """

    rank_count: Number = 1
    ranks_per_expert: Number = 1
    tensor_ranks: Number = 1

    def active_params(self) -> Number:
        """Returns the parameters of this rank that a token uses on average, rounded down."""
        mean_active_params = _divide_by_ranks(self.top_k * self.expert_params(), self.rank_count)
        return mean_active_params.__floor__() if isinstance(mean_active_params, Fraction) else mean_active_params

    def forward_flops(self, run_config: RunConfig) -> Number:
        return _divide_by_ranks(ExpertLinear.forward_flops(self, run_config) * self.ranks_per_expert, self.tensor_ranks)


@frozen(slots=True)
class IdentityExpertsOnRank(IdentityExperts):
    """The identity experts of a rank whose other experts are sharded. expert_layers: the linear layers of all experts.

    rank_count: over how many ranks the real experts are divided, each of them whole or in parts.
    """

    rank_count: Number = 1

    def max_skipped_params(self) -> Number:
        return floor_div(IdentityExperts.max_skipped_params(self), self.rank_count)

    def mean_skipped_params(self) -> Number:
        return floor_div(IdentityExperts.mean_skipped_params(self), self.rank_count)


def _divide_by_ranks(quantity: Number, rank_count: Number) -> Number:
    """Divides a number by the number of ranks; the result is an integer or an exact fraction."""
    if isinstance(quantity, int) and quantity % rank_count:
        return Fraction(quantity, rank_count)
    return exact_div(quantity, rank_count)
