"""Known differences between `transformers` classes and the architectures that they implement.

Only these differences are accepted in a comparison. Those of one family are in its record, those of all classes here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..algebra import Number
from ..flow.tree import Cost, CountedOp
from ..model import ModelSpec
from ..ops import KVCache, Op
from ..sources.huggingface.family import Deviation
from ..workload.run_config import RunConfig
from .transformers_class import family_of_class


def _remove_last_token(op: Op) -> Op:
    """Returns a sliding cache as the class stores it: without the window's last token; all tokens for a window of 1.

    The class slices from `1 - window`, which for a window of 1 is the first token (cache_utils.py of transformers).
    """
    return (
        replace(op, token_limit=op.token_limit - 1 or None)
        if isinstance(op, KVCache) and op.token_limit is not None
        else op
    )


COMMON_DEVIATIONS = (
    Deviation(
        "sliding cache",
        "a sliding or chunked layer's cache keeps one token less than its window",
        "cache_bytes",
        class_op=_remove_last_token,
    ),
)
"""The deviations of every class."""


def class_cost_function(model_type: str, quantity_name: str, cost: Cost, spec: ModelSpec) -> Cost:
    """Returns the cost function for operations as the `transformers` classes of a model type run them."""
    class_ops = [deviation.class_op for deviation in _applicable_deviations(model_type, quantity_name, spec)]

    def changed_cost(counted_op: CountedOp) -> Any:
        op = counted_op.op
        for replace_op in class_ops:
            op = replace_op(op)
        return cost(replace(counted_op, op=op))

    return changed_cost


def total_cost_in_class(
    model_type: str,
    quantity_name: str,
    cost: Cost,
    spec: ModelSpec,
    run_config: RunConfig | None = None,
    included_parts: frozenset[str] = frozenset(),
) -> Number:
    """Returns the cost of the whole model as the `transformers` classes of a model type run it."""
    class_cost = spec.tree().total(
        class_cost_function(model_type, quantity_name, cost, spec), run_config, include=included_parts
    )
    return class_cost + sum(
        deviation.further_quantity(spec) for deviation in _applicable_deviations(model_type, quantity_name, spec)
    )


def class_excess_function(model_type: str, quantity_name: str, spec: ModelSpec) -> Callable[[str], Number]:
    """Returns a function from node path to the count that the `transformers` class has beyond the formula."""
    counts_by_path = {
        deviation.node_path: deviation.further_quantity(spec)
        for deviation in _applicable_deviations(model_type, quantity_name, spec)
        if deviation.node_path
    }
    return lambda node_path: sum(
        added_count
        for deviating_path, added_count in counts_by_path.items()
        if deviating_path == node_path or deviating_path.startswith(f"{node_path}.")
    )


def _applicable_deviations(model_type: str, quantity_name: str, spec: ModelSpec) -> list[Deviation]:
    model_family = family_of_class(model_type)
    known_deviations = COMMON_DEVIATIONS if model_family is None else (*COMMON_DEVIATIONS, *model_family.deviations)
    return [
        deviation
        for deviation in known_deviations
        if deviation.quantity == quantity_name and deviation.applies_to(spec)
    ]
