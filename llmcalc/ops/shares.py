"""Linear layers of which a rank of a layout computes some rows: those of its tokens, or those that are sent to it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from ..algebra import Number, exact_div, floor_div
from ..workload.run_config import RunConfig
from .linear import ExpertLinear, Linear
from .products import IdentityExperts


@dataclass(frozen=True, slots=True)
class LinearShare(Linear):
    """A linear layer that every rank of a tensor group has whole and runs on its own tokens (sequence parallelism).

    ranks: how many ranks divide the tokens.
    """

    ranks: Number = 1

    def forward_flops(self, s: RunConfig) -> Number:
        return _part(Linear.forward_flops(self, s), self.ranks)

    def backward_flops(self, s: RunConfig) -> Number:
        return _part(Linear.backward_flops(self, s), self.ranks)


@dataclass(frozen=True, slots=True)
class ExpertShare(ExpertLinear):
    """The experts of one of the ranks that exchange tokens, with every expert chosen as often as any other.

    Each rank sends away its tokens' rows and gets as many from all others, so it computes its share of them.

    ranks: over how many ranks the experts are divided.
    parts: over how many ranks one expert is divided.
    tensor: how many ranks of a tensor group share their tokens.
    """

    ranks: Number = 1
    parts: Number = 1
    tensor: Number = 1

    def active_params(self) -> Number:
        """Parameters that a token uses here on average, rounded down."""
        used = _part(self.top_k * self.one(), self.ranks)
        return used.__floor__() if isinstance(used, Fraction) else used

    def forward_flops(self, s: RunConfig) -> Number:
        return _part(ExpertLinear.forward_flops(self, s) * self.parts, self.tensor)


@dataclass(frozen=True, slots=True)
class IdentityShare(IdentityExperts):
    """The identity experts beside experts that ranks divide. maps: the linear layers of all real experts.

    ranks: over how many ranks the real experts are divided, each of them whole or in parts.
    """

    ranks: Number = 1

    def spared_at_most(self) -> Number:
        return floor_div(IdentityExperts.spared_at_most(self), self.ranks)

    def spared_evenly(self) -> Number:
        return floor_div(IdentityExperts.spared_evenly(self), self.ranks)


def _part(number: Number, ranks: Number) -> Number:
    """One of so many equal parts; of a single token's products it may be no whole number."""
    if isinstance(number, int) and number % ranks:
        return Fraction(number, ranks)
    return exact_div(number, ranks)
