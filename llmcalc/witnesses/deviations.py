"""Known differences between classes of `transformers` and the architectures they implement: only these are excused in a
comparison. Those of one family are in its record; those of all classes are here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..algebra import Number
from ..flow.tree import Cost, Use
from ..model import ModelSpec
from ..ops import KVCache, Op
from ..sources.huggingface.family import Deviation
from ..workload.run_config import RunConfig
from .witness import family_behind


def _one_token_less(op: Op) -> Op:
    return replace(op, limit=op.limit - 1) if isinstance(op, KVCache) and op.limit is not None else op


OF_ALL = (
    Deviation(
        "sliding cache",
        "a sliding or chunked layer's cache keeps one token less than its window",
        "cache_bytes",
        follow=_one_token_less,
    ),
)
"""The deviations of every class."""


def followed(kind: str, quantity: str, cost: Cost, spec: ModelSpec) -> Cost:
    """The cost of an op in the classes of a text model type, deviations included."""
    steps = [deviation.follow for deviation in _of(kind, quantity, spec)]

    def following(use: Use) -> Any:
        op = use.op
        for step in steps:
            op = step(op)
        return cost(replace(use, op=op))

    return following


def total(
    kind: str,
    quantity: str,
    cost: Cost,
    spec: ModelSpec,
    run_config: RunConfig | None = None,
    include: frozenset[str] = frozenset(),
) -> Number:
    """The cost of the whole model in the classes of a text model type, deviations included."""
    counted = spec.tree().total(followed(kind, quantity, cost, spec), run_config, include=include)
    return counted + sum(deviation.more(spec) for deviation in _of(kind, quantity, spec))


def beside(kind: str, quantity: str, spec: ModelSpec) -> Callable[[str], Number]:
    """Path of a node → what the classes have in addition to the count there, the nodes below it included."""
    more = {deviation.at: deviation.more(spec) for deviation in _of(kind, quantity, spec) if deviation.at}
    return lambda path: sum(size for at, size in more.items() if at == path or at.startswith(f"{path}."))


def _of(kind: str, quantity: str, spec: ModelSpec) -> list[Deviation]:
    family = family_behind(kind)
    every = OF_ALL if family is None else (*OF_ALL, *family.deviations)
    return [d for d in every if d.quantity == quantity and d.when(spec)]
