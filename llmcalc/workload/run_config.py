"""The workload, counting conventions and execution for which operations are counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..algebra import Number, floor_div, is_zero, times
from ..frozen import frozen
from .counting import AS_EXECUTED, Counting, Pairs
from .execution import EAGER_EXECUTION, AttentionImplementation, Execution
from .rows import Rows
from .workload import Phase, Workload


@frozen(slots=True)
class RunConfig:
    """The workload, counting conventions and execution for which operations and rows (tokens) are counted.

    workload: what is run.
    counting: the counting conventions.
    execution: how it is executed.
    ranks_per_sequence: over how many ranks each sequence is divided, each of which computes as much, 1 by default.
    """

    workload: Workload
    counting: Counting = AS_EXECUTED
    execution: Execution = EAGER_EXECUTION
    ranks_per_sequence: int = 1

    @property
    def batch(self) -> Number:
        return self.workload.batch

    @property
    def phase(self) -> Phase:
        return self.workload.phase

    @property
    def pairs(self) -> Pairs:
        return self.counting.pairs

    @property
    def attention(self) -> AttentionImplementation:
        return self.execution.attention

    def new_rows(self, rows: Rows) -> Number:
        """Returns the number of rows (tokens) per sequence that this pass computes."""
        return rows.new_rows(self.workload)

    def past_rows(self, rows: Rows) -> Number:
        """Returns the number of rows (tokens) per sequence from earlier passes."""
        return rows.past_rows(self.workload)

    def available_rows(self, rows: Rows) -> Number:
        """Returns the number of rows (tokens) per sequence after this pass."""
        return rows.available_rows(self.workload)

    def rows(self, rows: Rows) -> Number:
        """Returns the number of rows that this pass computes, over all sequences."""
        return times(rows.new_rows(self.workload), self.batch if rows.batched else 1)

    def constant_rows(self, rows: Rows) -> Number:
        """Returns the number of rows over all sequences that are constants and need no gradient."""
        row_count = rows.constant_rows(self.workload)
        return 0 if is_zero(row_count) else times(row_count, self.batch if rows.batched else 1)

    def has_earlier_tokens(self, rows: Rows) -> bool:
        """Whether earlier passes have processed tokens of the sequences."""
        return self.phase == "decode" or not is_zero(self.past_rows(rows))

    def flops_per_rank(self, flops: Number) -> Number:
        """Returns one rank's share of FLOPs, rounded down, if several ranks divide each sequence evenly."""
        return flops if self.ranks_per_sequence == 1 else floor_div(flops, self.ranks_per_sequence)

    def with_workload(self, **changed_fields: Any) -> RunConfig:
        """Returns a copy with some fields of its workload changed."""
        return replace(self, workload=self.workload.with_changes(**changed_fields))

    def with_pairs(self, pairs: Pairs) -> RunConfig:
        """Returns a copy that counts other query-key pairs (`full` or `causal`)."""
        return replace(self, counting=replace(self.counting, pairs=pairs))
