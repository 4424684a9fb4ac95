"""How much work simulated runs have done, and budgets for searches that simulate many runs.

The work is counted and not timed, so that an answer does not depend on the machine.
"""

from __future__ import annotations

UNITS_PER_OPERATION = 50
"""Units of work of an operation of a program; a step of an allocator is one unit, of about a microsecond."""


class SimulatedWork:
    """The counter of the work of all simulated runs so far. units: allocator steps and weighted program operations."""

    units: int = 0


EFFORT = SimulatedWork()


class WorkBudget:
    """The limit on simulated work in a search. units: the work that the search may do, in units of `SimulatedWork`."""

    def __init__(self, work_units: int) -> None:
        self._start = EFFORT.units
        self._units = work_units

    def is_spent(self, budget_share: float = 1) -> bool:
        """Whether this share of the budget is spent, by default all of it."""
        return EFFORT.units - self._start >= budget_share * self._units
