"""Counts the work of simulated runs, and limits the work of searches that simulate many runs.

The work is counted and not timed, so that an answer does not depend on the machine. A recording that several runs share
counts once in a search, whichever process or earlier search has made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

UNITS_PER_OPERATION = 50
"""Units of work per operation of a program; a step of an allocator is one unit, of about a microsecond."""


class CountedWork(NamedTuple):
    """The simulated work of one run, in units of `SimulatedWork`, with recordings that other runs may share.

    unshared_units: the work without shared recordings.
    recordings: the shared recordings that it used, each with its key and its work.
    """

    unshared_units: int
    recordings: tuple[tuple[int, int], ...] = ()

    @property
    def total(self) -> int:
        """The work of the run and of its recordings, each counted once, in units of `SimulatedWork`."""
        return self.unshared_units + sum(dict(self.recordings).values())


def total_work(counted_works: Iterable[CountedWork]) -> CountedWork:
    """Returns the summed work of several runs, which may share recordings."""
    counted_work_list = list(counted_works)
    return CountedWork(
        sum(counted_work.unshared_units for counted_work in counted_work_list),
        tuple(recording for counted_work in counted_work_list for recording in counted_work.recordings),
    )


class SimulatedWork:
    """The counter of the simulated work of all runs so far, in allocator steps and weighted operations.

    units: allocator steps and weighted program operations.
    """

    def __init__(self) -> None:
        self.units: int = 0
        self._counted_recordings: set[int] = set()
        self._uses: list[tuple[int, int]] | None = None

    def begin_search(self) -> None:
        """Begins the search of another layout list; work on a recording that several of its runs share counts once."""
        self._counted_recordings.clear()

    def subtract_work_since(self, units_before: int) -> int:
        """Returns the work done since `units_before`, and subtracts it from the counter."""
        work_units, self.units = self.units - units_before, units_before
        return work_units

    def use_recording(self, recording_key: int, recording_units: int) -> None:
        """Counts the work of a recording at its first use. recording_key: the same in forked processes."""
        if self._uses is not None:
            self._uses.append((recording_key, recording_units))
        elif recording_key not in self._counted_recordings:
            self._counted_recordings.add(recording_key)
            self.units += recording_units

    @contextmanager
    def count_separately(self) -> Iterator[Callable[[], CountedWork]]:
        """Counts the work inside a `with` separately, for `add` to add; after an error it is added at once.

        Yields a function that returns the work so far.
        """
        shared_uses: list[tuple[int, int]] = []
        units_before, self._uses = self.units, shared_uses

        def counted_work_so_far() -> CountedWork:
            return CountedWork(self.units - units_before, tuple(shared_uses))

        try:
            yield counted_work_so_far
        except BaseException:
            self._uses = None
            self.add(CountedWork(0, tuple(shared_uses)))
            raise
        self._uses = None
        self.subtract_work_since(units_before)

    def add(self, work: CountedWork) -> None:
        """Adds work that `count_separately` has counted."""
        self.units += work.unshared_units
        for recording_key, recording_units in work.recordings:
            self.use_recording(recording_key, recording_units)


SIMULATED_WORK = SimulatedWork()


class WorkBudget:
    """The limit on simulated work in a search. work_units: the limit, in units of `SimulatedWork`."""

    def __init__(self, work_units: int) -> None:
        self._units = work_units
        self.restart()

    def restart(self) -> None:
        """Begins another search with the same limit of simulated work."""
        SIMULATED_WORK.begin_search()
        self._units_at_start: int = SIMULATED_WORK.units

    def is_spent(self, limit_fraction: float = 1) -> bool:
        """Whether a share of the limit is used up; by default all of it."""
        return SIMULATED_WORK.units - self._units_at_start >= limit_fraction * self._units

    @property
    def remaining_work_units(self) -> int:
        """The units of work that the search may still do; 0 if the budget is spent."""
        return max(0, self._units_at_start + self._units - SIMULATED_WORK.units)
