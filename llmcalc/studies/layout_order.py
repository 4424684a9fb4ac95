"""Sorts the layouts of a search, and replays the best of them until enough fit.

Estimates of all layouts come first, in other processes where there are some: they decide which layouts surely do not
fit, and the order in which the others are replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal, TypeAlias

from ..errors import InputError
from ..frameworks.peak_estimate import PeakEstimate
from ..frozen import frozen
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.layout_search import NO_REPLICAS, LayoutSearch
from ..simulator.simulated_work import SIMULATED_WORK, WorkBudget
from ..timing.time_ranges import TIE_SHARE
from .layout_candidates import CONFIGURED_RECOMPUTE, Candidate, LayoutRun, sorted_by_memory, sorted_by_time
from .layout_estimates import RunEstimates
from .layout_replays import EstimatedLayout, EstimateTask, LayoutReplays

NearestPolicy: TypeAlias = Literal["always", "if none fits", "never"]
"""The cases in which a plan searches for the layout with the least memory among layouts that do not fit."""

TOO_MUCH_MEMORY = "needs more than the usable memory"

UNTRIED_REASON = "not tried: the search ended before it"
"""The reason against layouts that were not tried before the search's budget was spent."""

WORK_OF_SEARCH = 14_000_000
"""Units of work after which a search ends, 5 to 20 seconds by the model. See `simulator/simulated_work.py`."""

ESTIMATES_WORK_SHARE = 0.35
"""Share of a search's work after which it estimates no further layouts."""

UNEVEN_TASK_FACTOR = 2
"""Factor by which a task in another process may exceed its equal share of the estimates' work."""

FURTHER_REPLAYS = 10
"""Largest number of further replays if some replayed layouts do not fit."""

NEAREST_REPLAYS = 4
"""Largest number of replays in the search for the layout that requires least, if none fits."""


@dataclass
class RankedLayouts:
    """The sorted layouts of a search, those that fit first.

    tried_count: number of layouts.
    fitting_candidates: layouts that fit in a replay, best first.
    unreplayed_candidates: layouts whose tensors fit and that were not replayed, best first.
    replay_count: number of layouts that were replayed.
    refusal_counts: reason → number of layouts.
    nearest_candidate: of the layouts that do not fit, the one that requires least in a replay; None if it was not
        searched.
    ended_early: whether its work was spent before all layouts were tried, or enough of them replayed.
    """

    tried_count: int
    fitting_candidates: list[Candidate] = field(default_factory=list)
    unreplayed_candidates: list[Candidate] = field(default_factory=list)
    replay_count: int = 0
    refusal_counts: dict[str, int] = field(default_factory=dict)
    nearest_candidate: Candidate | None = None
    ended_early: bool = False

    def most_frequent_refusal(self, default: str) -> str:
        """Returns the reason for which most layouts were refused. default: the text if none was refused."""
        return max(self.refusal_counts, key=self.refusal_counts.__getitem__, default=default)


def new_search_budget() -> WorkBudget:
    """Begins a search, and returns the limit of the work that it may do."""
    return WorkBudget(WORK_OF_SEARCH)


@frozen
class LayoutOrder:
    """Sorts layouts by time, or by the sum of their ranks in headroom, sent bytes and bubble.

    The best are replayed. Each layout recomputes as little as it needs to fit.

    layout_search: the layouts of the search.
    capacity: usable bytes of a device.
    run_estimates: bytes of tensors, sent bytes and seconds of each run; without seconds layouts are sorted by memory.
    replays: replays of runs, and estimates in other processes.
    recompute_modes: values of `--recompute`, each with less memory and more work than the one before.
    budget: the work of the search, which tries one layout at least; default `WORK_OF_SEARCH`.
    """

    layout_search: LayoutSearch
    capacity: int
    run_estimates: RunEstimates
    replays: LayoutReplays
    recompute_modes: Sequence[str] = (CONFIGURED_RECOMPUTE,)
    budget: WorkBudget = field(default_factory=new_search_budget)
    _estimated_sizes: set[tuple[object, ...]] = field(default_factory=set)

    def plan(
        self, row_count: int, suggests_nearest: NearestPolicy = "always", replay_limit: int | None = None
    ) -> RankedLayouts:
        """Returns the sorted layouts, at least `row_count` of which fit if so many can be found.

        row_count: number of fitting layouts after which replays end.
        replay_limit: number of layouts after which replays end, whether they fit or not; None (default) for
            `FURTHER_REPLAYS` more than rows.
        suggests_nearest: when the layout that requires least, of those that do not fit, is searched.
        Raises `InputError` if every layout is refused, for a reason that holds for other group sizes too.
        """
        layout_search = self.layout_search
        ranked_layouts = RankedLayouts(layout_search.tried_count)
        tried_candidates = self._candidates_of_layouts(layout_search.possible_layouts)
        too_large_layouts = [
            layout_and_batches
            for layout_and_batches, candidate in zip(layout_search.possible_layouts, tried_candidates, strict=True)
            if candidate is None
        ]
        candidates = [candidate for candidate in tried_candidates if isinstance(candidate, Candidate)]
        for candidate in tried_candidates:
            if isinstance(candidate, InputError):
                layout_search.count_refusal(candidate)
        unfit_candidates = [candidate for candidate in candidates if not candidate.may_fit]
        sorted_candidates = self._sort_candidates([candidate for candidate in candidates if candidate.may_fit])
        unfit_candidates += self._replay_in_order(
            ranked_layouts, row_count, sorted_candidates, replay_limit=replay_limit
        )
        if suggests_nearest == "always" or (
            suggests_nearest == "if none fits" and not ranked_layouts.fitting_candidates
        ):
            unfit_candidates = self._all_unfit_candidates(unfit_candidates, too_large_layouts)
            too_large_layouts = []
            ranked_layouts.nearest_candidate = self._smallest_replayed_candidate(unfit_candidates)
        ranked_layouts.ended_early |= UNTRIED_REASON in layout_search.refusal_counts
        return self._with_refusals(ranked_layouts, len(unfit_candidates) + len(too_large_layouts))

    def plan_of_fastest(self) -> RankedLayouts:
        """Returns only the fastest layout, as `plan(1, "never")` does, but faster.

        The seconds of layouts are known sooner than their bytes. So bytes are estimated from the fastest layout on,
        until the next layout is slower than a tie with the fastest that may fit; first with the most recomputation. A
        search that ends early without a layout that fits, or has no times, is that of `plan`, with a budget of its own.
        Raises `InputError` as `plan` does.
        """
        layout_search, refusals_before = self.layout_search, self.layout_search.refusal_counts.copy()
        if not self.run_estimates.are_timed:
            return self.plan(1, "never")
        ranked_layouts, too_large_count = RankedLayouts(layout_search.tried_count), 0
        timed_layouts = [
            (self._least_seconds(*layout_and_batches), layout_and_batches)
            for layout_and_batches in layout_search.possible_layouts
        ]
        untried_layouts = sorted(timed_layouts, key=lambda timed_layout: timed_layout[0])[::-1]

        def with_tied_candidates(candidates: list[Candidate]) -> list[Candidate]:
            nonlocal too_large_count
            while untried_layouts and not any(
                untried_layouts[-1][0] > (1 + TIE_SHARE) * (candidate.seconds or 0.0) for candidate in candidates
            ):
                if len(untried_layouts) < len(timed_layouts) and self.budget.is_spent(ESTIMATES_WORK_SHARE):
                    ranked_layouts.ended_early = True
                    break
                _, layout_and_batches = untried_layouts.pop()
                try:
                    candidate = self._candidate_that_may_fit(*layout_and_batches)
                except InputError as error:
                    layout_search.count_refusal(error)
                    continue
                too_large_count += candidate is None
                candidates = candidates if candidate is None else [*candidates, candidate]
            return self._sort_candidates(candidates)

        too_large_candidates = self._replay_in_order(ranked_layouts, 1, [], with_tied_candidates)
        if ranked_layouts.ended_early and not ranked_layouts.fitting_candidates:
            layout_search.refusal_counts = refusals_before
            self._estimated_sizes.clear()
            self.budget.restart()
            return self.plan(1, "never")
        return self._with_refusals(ranked_layouts, too_large_count + len(too_large_candidates))

    def _candidate_that_may_fit(self, layout: Layout, micro_batches: int) -> Candidate | None:
        """Returns a layout as a `Candidate` with the least recomputation that fits; None if it does not fit.

        Bounds that are known sooner than the estimate come first. Raises `InputError` for a layout that can have no
        kind of recomputation.
        """
        layout_run = LayoutRun(layout, micro_batches, self.recompute_modes[-1])
        sizes_that_choose_kernels = _kernel_layout_sizes(layout)
        if sizes_that_choose_kernels in self._estimated_sizes and self._is_too_large(layout_run):
            return None
        if self._has_too_large_rank(layout_run):
            self._estimated_sizes.add(sizes_that_choose_kernels)
            return None
        candidate = self._fitting_candidate(layout, micro_batches, self.recompute_modes, needs_fit=True)
        return candidate if candidate is not None and candidate.may_fit else None

    def _with_refusals(self, ranked_layouts: RankedLayouts, too_large_count: int) -> RankedLayouts:
        """Returns the ranked layouts with the number of refused layouts by reason.

        too_large_count: number of layouts that do not fit.
        Raises the most frequent error if no layout fits, may fit or is too large.
        """
        refusal_counts = ranked_layouts.refusal_counts = dict(self.layout_search.refusal_counts)
        if not (ranked_layouts.fitting_candidates or ranked_layouts.unreplayed_candidates or too_large_count):
            self._raise_most_frequent_error(refusal_counts)
        if too_large_count:
            refusal_counts[TOO_MUCH_MEMORY] = too_large_count
        return ranked_layouts

    def _least_seconds(self, layout: Layout, micro_batches: int) -> float:
        """Returns the seconds per step of a layout with the least recomputation; 0 if they are not estimated."""
        try:
            return self.run_estimates.step_seconds(LayoutRun(layout, micro_batches, self.recompute_modes[0]))
        except InputError:
            return 0.0

    def _sort_candidates(self, candidates: list[Candidate]) -> list[Candidate]:
        """Returns candidates sorted as in the plan: by time if it is estimated, otherwise by memory."""
        return (sorted_by_time if self.run_estimates.are_timed else sorted_by_memory)(candidates)

    def _replay_in_order(
        self,
        ranked_layouts: RankedLayouts,
        row_limit: int,
        waiting_candidates: list[Candidate],
        with_further_candidates: Callable[[list[Candidate]], list[Candidate]] = list,
        replay_limit: int | None = None,
    ) -> list[Candidate]:
        """Replays the candidates of a plan in order until enough fit; returns the candidates that do not fit.

        A candidate that does not fit, or cannot be replayed, is tried again with more recomputation, at its new
        position in the order. with_further_candidates: (waiting candidates) → the same with others, in order; default
        none.
        replay_limit: as in `plan`.
        """
        replay_limit = row_limit + FURTHER_REPLAYS if replay_limit is None else replay_limit
        too_large_candidates: list[Candidate] = []
        while (
            len(ranked_layouts.fitting_candidates) < row_limit
            and ranked_layouts.replay_count < replay_limit
            and (waiting_candidates := with_further_candidates(waiting_candidates))
        ):
            if ranked_layouts.replay_count and self.budget.is_spent():
                ranked_layouts.ended_early = True
                break
            missing_count, needed_candidates = row_limit - len(ranked_layouts.fitting_candidates), list[Candidate]()
            next_candidates = waiting_candidates[: replay_limit - ranked_layouts.replay_count]
            for candidate in next_candidates:  # what exceeds the capacity by the estimate will hardly be a row
                if missing_count <= 0:
                    break
                needed_candidates.append(candidate)
                missing_count -= candidate.headroom >= 0
            self.replays.start_replays([candidate.run for candidate in needed_candidates], self.capacity)
            candidate = waiting_candidates.pop(0)
            candidate_or_error = self._replay_with_messages(candidate)
            ranked_layouts.replay_count += isinstance(candidate_or_error, Candidate)
            if isinstance(candidate_or_error, Candidate) and candidate_or_error.headroom >= 0:
                ranked_layouts.fitting_candidates.append(candidate_or_error)
            elif (recomputing_candidate := self._with_more_recomputation(candidate)) is not None:
                waiting_candidates = self._sort_candidates([*waiting_candidates, recomputing_candidate])
            elif isinstance(candidate_or_error, Candidate):
                too_large_candidates.append(candidate_or_error)
            else:
                self.layout_search.count_refusal(candidate_or_error)
        ranked_layouts.unreplayed_candidates = waiting_candidates
        return too_large_candidates

    def _replay_with_messages(self, candidate: Candidate) -> Candidate | InputError:
        """Returns a candidate with replayed bytes and sent bytes, or the `InputError` if either cannot be computed."""
        try:
            _ = candidate.communication_bytes
            return self._replay(candidate, self.capacity)
        except InputError as error:
            return error

    def _raise_most_frequent_error(self, counts_by_reason: Mapping[str, int]) -> None:
        """Raises the most frequent error against layouts, except errors about group sizes, if all layouts were tried.

        An error about an option, such as a `--tp 2` that nobody typed, comes after one about the model, and that of
        layouts of one replica last. Nothing is raised if all errors are about group sizes.
        """
        if UNTRIED_REASON in counts_by_reason:
            return
        errors_by_reason = self.layout_search.errors_by_reason
        general_reasons = [
            reason
            for reason in counts_by_reason
            if reason in errors_by_reason and not isinstance(errors_by_reason[reason], ImpossibleLayout)
        ]
        if general_reasons:
            raise errors_by_reason[
                max(
                    general_reasons,
                    key=lambda reason: (reason != NO_REPLICAS, not reason.startswith("--"), counts_by_reason[reason]),
                )
            ]

    def _replay(self, candidate: Candidate, byte_limit: int | None = None) -> Candidate:
        """Returns a candidate with replayed bytes. Raises `InputError` if it cannot be replayed."""
        candidate_bytes = self.replays.replayed_bytes(candidate.run, byte_limit)
        return replace(candidate, device_bytes=candidate_bytes, upper_bound_bytes=candidate_bytes, is_replayed=True)

    def _candidates_of_layouts(self, layouts: Sequence[tuple[Layout, int]]) -> list[Candidate | InputError | None]:
        """Returns each layout as a `Candidate`, or the error if the framework cannot recompute as asked.

        The entry is None for a layout that surely does not fit and whose kernels other layouts have; nothing more of it
        is estimated. Layouts with many stages come first, because they show how many bytes layers save. Layouts that
        remain when the budget's share is spent have the error `UNTRIED_REASON`, but those that surely do not fit.
        """
        candidates_or_errors: list[Candidate | InputError | None] = [None] * len(layouts)
        too_large_flags = [self._has_too_large_static_bytes(layout) for layout, _ in layouts]
        estimation_order = sorted(
            range(len(layouts)),
            key=lambda layout_number: (too_large_flags[layout_number], -layouts[layout_number][0].pp),
        )
        estimate_by_number = self._estimates_from_processes(layouts, estimation_order, too_large_flags)
        for layout_number in estimation_order:
            if self.budget.is_spent(ESTIMATES_WORK_SHARE) and self._estimated_sizes:
                candidates_or_errors[layout_number] = (
                    None if too_large_flags[layout_number] else InputError(UNTRIED_REASON)
                )
            elif self._needs_estimate(layouts[layout_number][0], too_large_flags[layout_number]):
                estimate = estimate_by_number.get(layout_number)
                candidates_or_errors[layout_number] = (
                    self._candidate_or_error(*layouts[layout_number])
                    if estimate is None
                    else self._candidate_of_estimate(estimate, *layouts[layout_number])
                )
        return candidates_or_errors

    def _needs_estimate(self, layout: Layout, has_too_large_static_bytes: bool) -> bool:
        """Whether a layout must be estimated: its static bytes may fit, or its kernels are not measured yet."""
        return not has_too_large_static_bytes or _kernel_layout_sizes(layout) not in self._estimated_sizes

    def _candidate_or_error(self, layout: Layout, micro_batches: int) -> Candidate | InputError | None:
        """Returns a layout as a `Candidate`, None if it surely does not fit, or the error that refuses it."""
        try:
            return self._fitting_candidate(layout, micro_batches, self.recompute_modes, needs_fit=True)
        except InputError as error:
            return error

    def _estimates_from_processes(
        self, layouts: Sequence[tuple[Layout, int]], estimation_order: Sequence[int], too_large_flags: Sequence[bool]
    ) -> dict[int, EstimatedLayout]:
        """Returns a mapping from layout number to the estimate that another process computed.

        Layouts with other kernels share no measurements, so that a process estimates those with the same kernels as
        this one would. estimation_order: the numbers of the layouts, in the order in which they are estimated.
        too_large_flags: whether weights, gradients and optimizer states of each layout exceed the capacity.
        """
        numbers_by_sizes: dict[tuple[object, ...], list[int]] = {}
        for i in estimation_order:
            numbers_by_sizes.setdefault(_kernel_layout_sizes(layouts[i][0]), []).append(i)
        if not self.replays.can_fork or len(numbers_by_sizes) < 2:
            return {}
        try:
            peak_estimates = self._peak_estimates()
        except InputError:
            return {}
        for peak_estimate in peak_estimates:
            _ = peak_estimate.layer_kinds  # their ids are in the keys of measurements
        estimates_work = ESTIMATES_WORK_SHARE * self.budget.remaining_work_units
        work_limit = int(UNEVEN_TASK_FACTOR * estimates_work) // len(numbers_by_sizes)

        def estimate_layouts(estimate_task: EstimateTask) -> dict[int, EstimatedLayout]:
            estimate_by_number: dict[int, EstimatedLayout] = {}
            work_units = 0
            for layout_number in estimate_task.layout_numbers:
                if work_units > estimate_task.work_limit:
                    break
                if self._needs_estimate(layouts[layout_number][0], too_large_flags[layout_number]):
                    estimate_by_number[layout_number] = self._estimated_layout(peak_estimates, *layouts[layout_number])
                    work_units += estimate_by_number[layout_number].work.total
            return estimate_by_number

        estimate_tasks = [
            EstimateTask(tuple(layout_numbers), work_limit) for layout_numbers in numbers_by_sizes.values()
        ]
        return {
            i: estimate
            for estimates in self.replays.estimates(estimate_tasks, estimate_layouts)
            for i, estimate in estimates.items()
        }

    def _peak_estimates(self) -> list[PeakEstimate]:
        """Returns the peak estimate for each value of `--recompute`; processes share its measurements."""
        return [self.run_estimates.peak_estimate(recompute) for recompute in self.recompute_modes]

    def _estimated_layout(
        self, peak_estimates: Sequence[PeakEstimate], layout: Layout, micro_batches: int
    ) -> EstimatedLayout:
        """Returns a layout's estimate with its work, in a forked process; the parent process counts the work later."""
        earlier_measurements = [peak_estimate.measurements() for peak_estimate in peak_estimates]
        with SIMULATED_WORK.count_separately() as counted_work:
            candidate = self._candidate_or_error(layout, micro_batches)
            estimate_work = counted_work()
        measurements = tuple(
            peak_estimate.measurements_since(known_measurements)
            for peak_estimate, known_measurements in zip(peak_estimates, earlier_measurements, strict=True)
        )
        if isinstance(candidate, Candidate):  # a function of this process is not sent to another
            is_counted = candidate.may_fit and not self.run_estimates.are_timed
            count_sent_bytes = partial(int, candidate.communication_bytes or 0) if is_counted else None
            candidate = replace(candidate, count_sent_bytes=count_sent_bytes)
        has_estimated_kernels = _kernel_layout_sizes(layout) in self._estimated_sizes
        return EstimatedLayout(candidate, has_estimated_kernels, estimate_work, measurements)

    def _candidate_of_estimate(
        self, estimate: EstimatedLayout, layout: Layout, micro_batches: int
    ) -> Candidate | InputError | None:
        """Returns the `Candidate` of an estimate from a forked process, and counts the estimate's work here."""
        SIMULATED_WORK.add(estimate.work)
        for peak_estimate, measurements in zip(self._peak_estimates(), estimate.measurements, strict=True):
            peak_estimate.add_measurements(measurements)
        if estimate.has_estimated_kernels:
            self._estimated_sizes.add(_kernel_layout_sizes(layout))
        candidate = estimate.candidate
        if not isinstance(candidate, Candidate):
            return candidate
        if candidate.seconds is None:
            return replace(candidate, layout=layout)
        count_sent_bytes = cache(
            partial(self.run_estimates.sent_bytes, LayoutRun(layout, micro_batches, candidate.recompute))
        )
        return replace(candidate, layout=layout, count_sent_bytes=count_sent_bytes)

    def _has_too_large_static_bytes(self, layout: Layout) -> bool:
        """Whether a layout's weights, gradients and optimizer states alone exceed the capacity."""
        return self._is_too_large(LayoutRun(layout, 0))

    def _least_layout_bytes(self, layout: Layout, micro_batches: int) -> int:
        """Returns a lower bound of a layout's bytes under full recomputation; 0 if unknown."""
        try:
            return self.run_estimates.least_bytes(LayoutRun(layout, micro_batches, self.recompute_modes[-1]))
        except InputError:
            return 0

    def _is_too_large(self, layout_run: LayoutRun) -> bool:
        """Whether a lower bound of a layout run's bytes exceeds the device's capacity."""
        try:
            return self._exceeds_capacity(self.run_estimates.least_bytes(layout_run))
        except InputError:
            return False

    def _has_too_large_rank(self, layout_run: LayoutRun) -> bool:
        """Whether the tensors of a rank exceed the capacity; false if it cannot be estimated."""
        try:
            return self.run_estimates.has_too_large_rank(layout_run, self._exceeds_capacity)
        except InputError:
            return False

    def _exceeds_capacity(self, byte_count: int) -> bool:
        """Whether a layout surely does not fit. byte_count: the estimated bytes of its tensors."""
        return self.run_estimates.estimate_errors.lower_bound(byte_count) > self.capacity

    def _fitting_candidate(
        self, layout: Layout, micro_batches: int, recompute_modes: Sequence[str], needs_fit: bool = False
    ) -> Candidate | None:
        """Returns the candidate under the first value of `--recompute` with which it may fit, otherwise the last value.

        needs_fit: whether values with which the layout surely does not fit are passed over where others have its
            kernels, and None is returned if it does not fit with the rest; false by default.
        Raises `InputError` for a layout that can have none of the values.
        """
        last_candidate: Candidate | None = None
        has_skipped_mode = False
        for recompute in recompute_modes:
            layout_run = LayoutRun(layout, micro_batches, recompute)
            if (
                needs_fit
                and _kernel_layout_sizes(layout) in self._estimated_sizes
                and (
                    self._is_too_large(layout_run)
                    or (recompute != recompute_modes[-1] and self._has_too_large_rank(layout_run))
                )
            ):
                has_skipped_mode = True
                continue
            run_estimates, step_seconds = self.run_estimates, None
            try:
                tensor_bytes = run_estimates.tensor_bytes(layout_run)
                may_fit = not self._exceeds_capacity(tensor_bytes)
                cached_sent_bytes = cache(partial(run_estimates.sent_bytes, layout_run)) if may_fit else None
                if cached_sent_bytes is not None and run_estimates.are_timed:
                    step_seconds = run_estimates.step_seconds(layout_run)
                elif cached_sent_bytes is not None:
                    cached_sent_bytes()  # the order needs it, and an error refuses the layout
            except InputError:
                if last_candidate is None and has_skipped_mode:
                    return self._fitting_candidate(layout, micro_batches, recompute_modes)
                if last_candidate is None:
                    raise
                continue
            self._estimated_sizes.add(_kernel_layout_sizes(layout))
            last_candidate = Candidate(
                layout,
                micro_batches,
                tensor_bytes,
                self.capacity,
                cached_sent_bytes,
                step_seconds,
                upper_bound_bytes=self.run_estimates.estimate_errors.upper_bound(tensor_bytes),
                recompute=recompute,
            )
            if may_fit:
                return last_candidate
        return None if has_skipped_mode else last_candidate

    def _with_more_recomputation(self, candidate: Candidate) -> Candidate | None:
        """Returns the candidate under the next value of `--recompute` with which it may fit; None if none may."""
        further_modes = self.recompute_modes[self.recompute_modes.index(candidate.recompute) + 1 :]
        try:
            recomputed_candidate = (
                self._fitting_candidate(candidate.layout, candidate.micro_batches, further_modes)
                if further_modes
                else None
            )
        except InputError:
            return None
        return recomputed_candidate if recomputed_candidate is not None and recomputed_candidate.may_fit else None

    def _all_unfit_candidates(
        self, estimated_candidates: list[Candidate], too_large_layouts: list[tuple[Layout, int]]
    ) -> list[Candidate]:
        """Returns all candidates that do not fit, with layouts whose lower bound alone was too large.

        The order is that of the search; replayed candidates come later, and last those that fit with no run. Layouts
        with the smallest lower bound are estimated first; where the budget is spent, the rest is left out.
        """
        unfit_candidates = list(estimated_candidates)

        def least_bytes_key(layout_and_batches: tuple[Layout, int]) -> tuple[bool, int]:
            return (
                self._has_too_large_static_bytes(layout_and_batches[0]),
                self._least_layout_bytes(*layout_and_batches),
            )

        for layout, micro_batches in sorted(too_large_layouts, key=least_bytes_key):
            if unfit_candidates and self.budget.is_spent(ESTIMATES_WORK_SHARE):
                break
            try:
                candidate = self._fitting_candidate(layout, micro_batches, self.recompute_modes)
            except InputError as error:
                self.layout_search.count_refusal(error)
                continue
            assert candidate is not None
            unfit_candidates.append(candidate)
        index_of_layout = {
            layout_and_batches: search_position
            for search_position, layout_and_batches in enumerate(self.layout_search.possible_layouts)
        }

        def candidate_key(candidate: Candidate) -> tuple[bool, bool, int]:
            layout_position = 0 if candidate.is_replayed else index_of_layout[candidate.layout, candidate.micro_batches]
            return self._has_too_large_static_bytes(candidate.layout), candidate.is_replayed, layout_position

        return sorted(unfit_candidates, key=candidate_key)

    def _smallest_replayed_candidate(self, unfit_candidates: list[Candidate]) -> Candidate | None:
        """Returns, of the layouts that do not fit, the one with the least replayed bytes; None if all fit.

        It stops when the estimates of the others, minus the largest error, exceed the smallest replay so far. A layout
        that cannot be replayed is removed from the list. A replay ends early at a rank that exceeds the smallest one.
        """
        smallest_candidate: Candidate | None = None
        replay_count, lower_bound = 0, self.run_estimates.estimate_errors.lower_bound
        sorted_candidates = sorted(unfit_candidates, key=lambda candidate: candidate.device_bytes)
        nearest_candidates = [
            candidate
            for candidate in sorted_candidates[:NEAREST_REPLAYS]
            if lower_bound(candidate.device_bytes) < sorted_candidates[0].device_bytes
        ]
        for candidate_index, candidate in enumerate(sorted_candidates):
            if smallest_candidate is not None and (
                smallest_candidate.device_bytes <= lower_bound(candidate.device_bytes)
                or replay_count == NEAREST_REPLAYS
                or self.budget.is_spent()
            ):
                break
            smallest_bytes = None if smallest_candidate is None else smallest_candidate.device_bytes
            next_candidates = nearest_candidates[candidate_index:][: 2 if smallest_bytes is None else None]
            self.replays.start_replays([candidate.run for candidate in next_candidates], smallest_bytes)
            replay_count += 1
            try:
                replayed_candidate = self._replay(candidate, smallest_bytes)
            except InputError as error:
                self.layout_search.count_refusal(error)
                unfit_candidates.remove(candidate)
                continue
            if smallest_candidate is None or replayed_candidate.device_bytes < smallest_candidate.device_bytes:
                smallest_candidate = replayed_candidate
        return smallest_candidate


def _kernel_layout_sizes(layout: Layout) -> tuple[object, ...]:
    """Returns the parallel sizes that determine which kernels a rank runs."""
    return layout.tp, layout.cp, layout.cp_comm, layout.sequence_parallel
