"""Values of a compute graph with one element per query and key, such as masks."""

from __future__ import annotations

from ...workload.rows import Rows
from ..axis import Axis, JoinedShapes
from ..value import Value


def query_key_pair_value(
    query_rows: Rows, *axes: Axis | JoinedShapes, is_constant: bool = False, is_batched: bool = False
) -> Value:
    """Returns a value with one element per query and key. is_batched: whether it differs between sequences."""
    from ...workload.derived_rows import QueryKeyPairs

    query_rows = query_rows.source_rows if isinstance(query_rows, QueryKeyPairs) else query_rows
    return Value(QueryKeyPairs(source_rows=query_rows, batched=is_batched), axes, is_constant=is_constant)
