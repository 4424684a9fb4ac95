"""The counting conventions of a run, which are printed with its numbers.

One multiply-add is always 2 FLOPs.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..frozen import frozen

Pairs: TypeAlias = Literal["full", "causal"]


@frozen(slots=True)
class Counting:
    """The counting conventions.

    pairs: the (query, key) pairs that count. `full` (default): every query against every key in memory, as eager
        attention computes. `causal`: only pairs that the attention mask allows (causal, sliding-window, chunked).
    """

    pairs: Pairs = "full"


AS_EXECUTED = Counting()
"""Counts every pair that eager attention computes."""
