"""The counting conventions of a run, which reports state beside the counts.

One multiply-add is always 2 FLOPs.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..frozen import frozen

Pairs: TypeAlias = Literal["full", "causal"]


@frozen(slots=True)
class Counting:
    """The counting conventions of a run, such as which query-key pairs count.

    pairs: the (query, key) pairs that count. `full` (default): every query against every key in memory, as eager
        attention computes. `causal`: only pairs that the attention mask allows (causal, sliding-window, chunked).
    """

    pairs: Pairs = "full"


AS_EXECUTED = Counting()
"""The convention that counts every query-key pair that eager attention computes."""
