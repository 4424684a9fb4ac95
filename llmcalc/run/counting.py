"""How a run is counted: the conventions that a number depends on, printed with it.

One multiply-add is 2 FLOPs, everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Pairs: TypeAlias = Literal["full", "causal"]


@dataclass(frozen=True, slots=True)
class Counting:
    """pairs: which (query, key) pairs count. `full`: every query by every key in memory, as eager attention executes
    it. `causal`: only the pairs that the attention mask allows, sliding windows and chunks included.
    """

    pairs: Pairs = "full"


AS_EXECUTED = Counting()
"""Every pair that eager attention computes."""
