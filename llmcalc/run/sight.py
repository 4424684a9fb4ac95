"""What an op is given when it is counted: the workload, the counting and the execution, and how many rows there are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..algebra import Number, is_zero, times
from .counting import AS_EXECUTED, Counting, Pairs
from .execution import EAGER, AttentionBackward, Execution
from .rows import Rows
from .workload import Phase, Workload


@dataclass(frozen=True, slots=True)
class Sight:
    """A run as an op sees it."""

    workload: Workload
    counting: Counting = AS_EXECUTED
    execution: Execution = EAGER

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
    def attention_backward(self) -> AttentionBackward:
        return self.execution.attention_backward

    def new(self, rows: Rows) -> Number:
        """Rows of one sequence that this pass computes."""
        return rows.new(self.workload)

    def past(self, rows: Rows) -> Number:
        """Rows of one sequence that earlier passes have left."""
        return rows.past(self.workload)

    def held(self, rows: Rows) -> Number:
        """Rows of one sequence that exist after this pass."""
        return rows.held(self.workload)

    def rows(self, rows: Rows) -> Number:
        """Rows that this pass computes, of all sequences."""
        return times(rows.new(self.workload), self.batch if rows.batched else 1)

    def constant(self, rows: Rows) -> Number:
        """How many of `rows(rows)` are not computed from any parameter."""
        return times(rows.constant(self.workload), self.batch if rows.batched else 1)

    def continues(self, rows: Rows) -> bool:
        """Whether tokens of earlier passes stand before these."""
        return self.phase == "decode" or not is_zero(self.past(rows))

    def with_workload(self, **changes: Any) -> Sight:
        """The same run with some fields of its workload changed."""
        return replace(self, workload=self.workload.with_(**changes))

    def with_pairs(self, pairs: Pairs) -> Sight:
        """The same run, counted under another convention of pairs."""
        return replace(self, counting=replace(self.counting, pairs=pairs))
