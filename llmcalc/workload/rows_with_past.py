"""Rows of earlier passes that are computed again, because only their inputs are cached.

They have a separate file, because its imports are slow and rarely needed.
"""

from __future__ import annotations

from ..algebra import Number, floor_div, is_zero, minimum
from ..frozen import frozen
from .rows import TOKENS, Rows
from .workload import Workload


@frozen(slots=True)
class RowsWithPast(Rows):
    """The rows that a pass computes: new tokens, and tokens of earlier passes that are computed again.

    window: only rows within a window of that many tokens are recomputed; None for all.
    selected_keys: decoding reads only that many rows in total, selected by another part (as in `AttentionCore`); None
        for all.
    pool_size: the selected rows are whole pools of that many rows, to which the rows after the last whole pool are
        added (as in `PooledAttentionCore`); None for single rows.
    """

    name: str = "with_past"
    source_rows: Rows = TOKENS
    window: Number = None
    selected_keys: Number = None
    pool_size: Number = None

    def new_rows(self, workload: Workload) -> Number:
        past_row_count = self.source_rows.past_rows(workload)
        if self.pool_size is not None and workload.phase == "decode":
            row_count = past_row_count + self.source_rows.new_rows(workload)
            poolable_rows = floor_div(row_count, self.pool_size) * self.pool_size
            return minimum(poolable_rows, self.selected_keys) + row_count - poolable_rows
        most_past_rows = (
            self.selected_keys if self.selected_keys is not None and workload.phase == "decode" else self.window
        )
        if most_past_rows is not None and not is_zero(past_row_count):
            past_row_count = minimum(past_row_count, most_past_rows - 1)
        return self.source_rows.new_rows(workload) + past_row_count
