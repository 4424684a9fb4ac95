"""Layouts that may fit, with estimated or replayed bytes; sorted by time or by memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import InputError, short_repr
from ..frozen import frozen
from ..parallel.layout import Layout
from ..parallel.schedule_formulas import bubble_fraction
from ..timing.time_ranges import TIE_SHARE

CONFIGURED_RECOMPUTE = ""
"""The value of a candidate's recomputation that means the recomputation in the run's settings."""


class LayoutRun(NamedTuple):
    """A layout to estimate or replay, with its micro-batches per step. recompute: value of `--recompute`."""

    layout: Layout
    micro_batches: int
    recompute: str = CONFIGURED_RECOMPUTE


@frozen
class Candidate:
    """A parallel layout that may fit on the devices, with the estimated bytes of its largest rank.

    micro_batches: micro-batches per step.
    device_bytes: bytes that the largest rank requires.
    capacity: usable bytes of a device.
    count_sent_bytes: counts the bytes that a rank sends per step; None if the layout does not fit.
    seconds: estimated seconds of a step; None if layouts are not timed, or this layout's time is not modelled.
    is_replayed: whether device_bytes is from a replay on the allocator; else it counts tensors only.
    upper_bound_bytes: upper bound of device_bytes; equal to it after a replay.
    recompute: value of `--recompute`; empty for the run's own setting.
    """

    layout: Layout
    micro_batches: int
    device_bytes: int
    capacity: int
    count_sent_bytes: Callable[[], int] | None
    seconds: float | None = None
    is_replayed: bool = False
    upper_bound_bytes: int = 0
    recompute: str = CONFIGURED_RECOMPUTE

    @property
    def run(self) -> LayoutRun:
        """The `LayoutRun` of the candidate, whose bytes the search estimates and replays."""
        return LayoutRun(self.layout, self.micro_batches, self.recompute)

    @property
    def headroom(self) -> int:
        return self.capacity - self.device_bytes

    @property
    def may_fit(self) -> bool:
        """Whether the tensors of the layout's largest rank may fit on a device."""
        return self.count_sent_bytes is not None

    @cached_property
    def communication_bytes(self) -> int | None:
        """The bytes that a rank sends per step; None if the layout does not fit."""
        return None if self.count_sent_bytes is None else self.count_sent_bytes()

    @cached_property
    def bubble(self) -> float | None:
        """The idle fraction of a pipeline rank's step; None if the layout does not fit."""
        return None if self.count_sent_bytes is None else bubble_fraction(self.layout, self.micro_batches)

    @property
    def options(self) -> str:
        """The layout and its recomputation as command-line options of `memory` and `time`."""
        recompute_option = "" if self.recompute == CONFIGURED_RECOMPUTE else f"--recompute {self.recompute}"
        return f"{self.layout.options()} {recompute_option}".strip()


def sorted_by_time(candidates: list[Candidate]) -> list[Candidate]:
    """Sorts candidates by seconds per step; if times tie, the most common kind of layout comes first.

    The most common layout has the smallest context parallelism, then the fewest kinds of parallelism; among equals the
    fastest comes first, then the one with the fewest bytes.
    """
    candidates_by_seconds = sorted(candidates, key=lambda candidate: (candidate.seconds or 0.0, candidate.device_bytes))
    tied_groups: list[list[Candidate]] = []
    for candidate, is_tie in zip(candidates_by_seconds, ties_with_previous(candidates_by_seconds), strict=True):
        tied_groups[-1:] = [[*tied_groups[-1], candidate]] if is_tie else [*tied_groups[-1:], [candidate]]
    return [
        candidate for tied_candidates in tied_groups for candidate in sorted(tied_candidates, key=_parallelism_counts)
    ]


def _parallelism_counts(candidate: Candidate) -> tuple[int, int]:
    """Returns the context-parallel size, and how many kinds of parallelism a layout uses."""
    layout = candidate.layout
    group_sizes = layout.tp, layout.cp, layout.pp, layout.dp, layout.ep, layout.vpp
    return layout.cp, sum(group_size > 1 for group_size in group_sizes)


def ties_with_previous(candidates: list[Candidate]) -> list[bool]:
    """Returns, for each candidate in order of time, whether its time ties with the previous one's (`TIE_SHARE`)."""
    tie_flags: list[bool] = []
    least_seconds = 0.0
    for candidate in candidates:
        step_seconds = candidate.seconds or 0.0
        tie_flags.append(bool(least_seconds) and step_seconds <= (1 + TIE_SHARE) * least_seconds)
        least_seconds = min(least_seconds, step_seconds) if tie_flags[-1] else step_seconds
    return tie_flags


PLACED_SIZES = ("tp", "pp", "cp", "dp", "ep", "vpp")
"""Names of the group sizes by which a user can ask for a layout's position (`--where`)."""


def parse_layout_sizes(sizes_text: str) -> dict[str, int]:
    """Parses sizes of a layout, such as `tp=8,pp=16`. Raises `InputError` for other text."""
    layout_sizes: dict[str, int] = {}
    for size_assignment in sizes_text.split(","):
        size_name, _, size_text = size_assignment.partition("=")
        size_name = size_name.strip().lower()
        if (
            size_name not in PLACED_SIZES
            or not re.fullmatch(r"\s*[0-9]{1,7}\s*", size_text)
            or size_name in layout_sizes
        ):
            raise InputError(
                f"--where: {short_repr(size_assignment)}; expected sizes of a layout such as tp=8,pp=16, "
                f"of {', '.join(PLACED_SIZES)}"
            )
        layout_sizes[size_name] = int(size_text)
    return layout_sizes


def position_of_layout(candidates: list[Candidate], layout_sizes: Mapping[str, int]) -> int | None:
    """Returns the position (from 1) of the first candidate with these parallel sizes; None without one."""
    for position, candidate in enumerate(candidates, start=1):
        if all(getattr(candidate.layout, size_name) == group_size for size_name, group_size in layout_sizes.items()):
            return position
    return None


ENOUGH_HEADROOM = 0.1
"""Fraction of a device's memory above which more headroom does not improve a layout's rank."""


def sorted_by_memory(candidates: list[Candidate]) -> list[Candidate]:
    """Sorts candidates by the sum of three ranks: in memory headroom, in sent bytes and in pipeline bubble."""
    rank_sums: dict[int, int] = {}
    sort_keys: tuple[Callable[[Candidate], Any], ...] = (
        lambda candidate: -min(candidate.headroom, int(ENOUGH_HEADROOM * candidate.capacity)),
        lambda candidate: candidate.communication_bytes,
        lambda candidate: candidate.bubble,
    )
    for sort_key in sort_keys:
        sort_values = sorted({sort_key(candidate) for candidate in candidates})
        rank_by_value = {sort_value: value_rank for value_rank, sort_value in enumerate(sort_values)}
        for candidate in candidates:
            rank_sums[id(candidate)] = rank_sums.get(id(candidate), 0) + rank_by_value[sort_key(candidate)]
    return sorted(candidates, key=lambda candidate: (rank_sums[id(candidate)], candidate.device_bytes))
