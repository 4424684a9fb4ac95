"""Replays the layouts of a search on the simulated allocator, in several processes if these can be forked.

The result and the work of a replay depend neither on the process that runs it nor on replays before it. The same
processes estimate layouts before they replay some.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from ..errors import InputError
from ..frameworks.framework import EstimateErrors, LazyFunction
from ..frameworks.peak_estimate import PassMeasurements
from ..frameworks.ranks import Cluster
from ..processes import ForkedCalls, usable_processes
from ..simulator.simulated_work import SIMULATED_WORK, CountedWork, WorkBudget, total_work
from .layout_candidates import Candidate, LayoutRun
from .layout_estimates import RunEstimates


class ReplayTask(NamedTuple):
    """A task for a process: replay a layout's ranks on the simulated allocator.

    layout_run: the layout and its run.
    stage_peaks: the estimated bytes of each pipeline stage's ranks, which are not replayed if they surely need no more
        than an earlier one; empty (default) to replay all, in the order of the ranks.
    byte_limit: bytes of that rank above which the others are not replayed; None to replay all.
    work_limit: units of work after which no further rank is replayed; None (default) to replay all.
    """

    layout_run: LayoutRun
    stage_peaks: tuple[int, ...] = ()
    byte_limit: int | None = None
    work_limit: int | None = None

    @property
    def first_stage(self) -> int | None:
        """The stage with the largest estimate, whose rank is replayed first; None to replay ranks in their order."""
        return self.stage_peaks.index(max(self.stage_peaks)) if self.stage_peaks else None


class ReplayedLayout(NamedTuple):
    """A replayed layout: its bytes, and the work of the replay.

    first_rank_bytes, first_rank_work: of the rank that was replayed first; 0 where the ranks had their own order.
    bytes, work: of the largest of all replayed ranks, and of all of them.
    """

    first_rank_bytes: int
    first_rank_work: CountedWork
    bytes: int
    work: CountedWork


class StageTask(NamedTuple):
    """A task for a process: replay ranks of one pipeline stage, which share recorded passes."""

    layout_run: LayoutRun
    ranks: tuple[int, ...]


class RankReplay(NamedTuple):
    """A replayed rank: its bytes, and the work of the replay."""

    bytes: int
    work: CountedWork


def replay_layout(cluster: Cluster, replay_task: ReplayTask) -> ReplayedLayout:
    """Replays the ranks of a layout that may need the most memory on the simulated allocator, as `llmcalc memory` does.

    The work is not counted, but returned. cluster: the ranks of the task's run.
    """
    ranks, estimate_errors = cluster.ranks_that_may_need_most, cluster.framework.estimate_errors
    return _largest_replay(estimate_errors, replay_task, ranks, partial(_replay_rank, cluster))


def _replay_rank(cluster: Cluster, rank: int) -> RankReplay:
    """Replays a rank, and returns its bytes with the work of the replay, which the caller counts."""
    with SIMULATED_WORK.count_separately() as counted_work:
        device_bytes = cluster.rank_memory(rank, cluster.memory.cuda_runtime).device.device_bytes
        return RankReplay(device_bytes, counted_work())


def _largest_replay(
    estimate_errors: EstimateErrors,
    replay_task: ReplayTask,
    ranks: Sequence[int],
    replay_rank: Callable[[int], RankReplay],
) -> ReplayedLayout:
    """Replays the ranks of a layout that may need the most memory, and returns the largest replay.

    ranks: those that may need the most; left out are those that surely need no more than a replayed one.
    replay_rank: rank → its replay. Work before an error is counted.
    """
    layout, first_stage_index = replay_task.layout_run.layout, replay_task.first_stage
    replay_by_rank: dict[int, RankReplay] = {}

    def work_so_far() -> CountedWork:
        return total_work(replay.work for replay in replay_by_rank.values())

    try:
        if first_stage_index is None:
            first_replay = RankReplay(0, CountedWork(0))
        else:
            first_rank = layout.rank(pp=first_stage_index)
            first_replay = replay_by_rank[first_rank] = replay_rank(first_rank)
            if replay_task.byte_limit is not None and first_replay.bytes > replay_task.byte_limit:
                return ReplayedLayout(*first_replay, *first_replay)
        largest_bytes = first_replay.bytes
        for rank in ranks:
            if largest_bytes and replay_task.work_limit is not None and work_so_far().total > replay_task.work_limit:
                break
            if rank in replay_by_rank:
                continue
            if first_stage_index is not None:
                upper_bound = estimate_errors.upper_bound_of_stage(
                    replay_task.stage_peaks[layout.coordinates(rank).pp],
                    replay_task.stage_peaks[first_stage_index],
                    first_replay.bytes,
                )
                if upper_bound <= largest_bytes:
                    continue
            replay_by_rank[rank] = replay_rank(rank)
            largest_bytes = max(largest_bytes, replay_by_rank[rank].bytes)
    except InputError:
        SIMULATED_WORK.add(work_so_far())
        raise
    return ReplayedLayout(*first_replay, largest_bytes, work_so_far())


class EstimateTask(NamedTuple):
    """A task for a process: estimate layouts with the same kernels, independently of all other layouts.

    layout_numbers: their numbers in the search, in the order in which they are estimated.
    work_limit: units of work after which no further one is estimated.
    """

    layout_numbers: tuple[int, ...]
    work_limit: int


class EstimatedLayout(NamedTuple):
    """The estimate of a layout, computed in a forked process.

    candidate: the candidate; None if it does not fit, or the error against it. Where seconds are estimated, its sent
        bytes are counted when they are asked for, by the process that asks.
    has_estimated_kernels: whether the bytes of a layout with these kernels have been estimated.
    work: work of the estimate.
    measurements: by each kind of recomputation, what the estimate has measured.
    """

    candidate: Candidate | InputError | None
    has_estimated_kernels: bool
    work: CountedWork
    measurements: tuple[PassMeasurements, ...]


EstimateLayouts: TypeAlias = Callable[[EstimateTask], dict[int, EstimatedLayout]]
"""A function from an estimate task to (number of a layout → its estimate), for the first layouts of the task."""


SearchTask: TypeAlias = ReplayTask | StageTask | EstimateTask
"""A task of a layout search that another process may run."""


class LayoutReplays:
    """The memory replays of a search's layouts, and their results.

    run_estimates: the estimates of the runs, and their models.
    budget: the work of the search. A run without a limit of bytes replays the rank with the largest estimate, and
        others until the budget is spent.
    """

    def __init__(self, run_estimates: RunEstimates, budget: WorkBudget) -> None:
        self._run_estimates: RunEstimates = run_estimates
        self._budget: WorkBudget = budget
        self._calls: ForkedCalls[SearchTask, Any] = ForkedCalls(self._run_task, usable_processes())
        self._estimate_layouts: EstimateLayouts | None = None
        self._begun: dict[LayoutRun, ReplayTask] = {}
        self._begun_stages: dict[LayoutRun, dict[int, StageTask]] = {}

    def __enter__(self) -> LayoutReplays:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.close()

    @property
    def can_fork(self) -> bool:
        """Whether estimates and replays may run in forked processes."""
        return self._calls.can_fork

    def estimates(
        self, estimate_tasks: Sequence[EstimateTask], estimate_layouts: EstimateLayouts
    ) -> Iterator[dict[int, EstimatedLayout]]:
        """Yields the estimates of each task; the tasks run at the same time in several processes."""
        self._estimate_layouts = estimate_layouts
        rank_memory = self._run_estimates.framework.rank_memory
        if isinstance(rank_memory, LazyFunction):
            _ = rank_memory.function  # imported once, before the processes start
        self._calls.begin((estimate_task, estimate_task.layout_numbers[:1]) for estimate_task in estimate_tasks)
        for estimate_task in estimate_tasks:
            yield self._calls.result(estimate_task)

    def start_replays(self, layout_runs: Sequence[LayoutRun], byte_limit: int | None) -> None:
        """Starts replays that the search will probably need, in this order, if there are several processes.

        byte_limit: as in `bytes`. With None the first one is asked for without a limit, and the others with a limit
            that is not known yet.
        """
        if not self._calls.can_fork:
            return
        replay_tasks: list[tuple[SearchTask, Hashable]] = []
        for run_index, layout_run in enumerate(layout_runs):
            if layout_run not in self._begun:
                self._begun[layout_run] = self._replay_task(
                    layout_run, byte_limit, has_no_limit=byte_limit is None and run_index == 0
                )
                self._begun_stages[layout_run] = self._stage_tasks(self._begun[layout_run])
            layout_tasks = self._begun_stages[layout_run].values() or (self._begun[layout_run],)
            replay_tasks += [(layout_task, _pass_sizes(layout_run)) for layout_task in layout_tasks]
        self._calls.begin(replay_tasks)

    def _stage_tasks(self, replay_task: ReplayTask) -> dict[int, StageTask]:
        """Returns the replay task of each pipeline stage, the largest stage first; empty if the layout hardly fits.

        Stages that surely need no more than the largest are left out. The result is empty for a single task.
        """
        layout, stage_peaks, first_stage_index = (
            replay_task.layout_run.layout,
            replay_task.stage_peaks,
            replay_task.first_stage,
        )
        if (
            first_stage_index is None
            or replay_task.byte_limit is None
            or (largest_peak := stage_peaks[first_stage_index]) > replay_task.byte_limit
            or not self._run_estimates.framework.replays_stages_alone
        ):
            return {}
        ranks_by_stage = {first_stage_index: {layout.rank(pp=first_stage_index)}}
        for rank in self._run_estimates.cluster(replay_task.layout_run).ranks_that_may_need_most:
            stage_index = layout.coordinates(rank).pp
            upper_bound = self._run_estimates.estimate_errors.upper_bound_of_stage(
                stage_peaks[stage_index], largest_peak, largest_peak
            )
            if upper_bound > largest_peak:
                ranks_by_stage.setdefault(stage_index, set()).add(rank)
        return {
            stage_index: StageTask(replay_task.layout_run, tuple(sorted(stage_ranks)))
            for stage_index, stage_ranks in ranks_by_stage.items()
        }

    def replayed_bytes(self, layout_run: LayoutRun, byte_limit: int | None) -> int:
        """Returns the bytes of a layout's largest rank, replayed on the simulated allocator.

        byte_limit: bytes; if the rank with the largest estimate requires more, it stands for all. None replays all.
        Raises `InputError` for a run that cannot be replayed.
        """
        replay_task = self._replay_task(layout_run, byte_limit, has_no_limit=byte_limit is None)
        running_task = self._begun.pop(layout_run, None)
        if running_task is not None:
            running_limit = running_task.byte_limit
            if running_task == replay_task or (
                running_task.work_limit is None
                and (running_limit is None or (byte_limit is not None and running_limit >= byte_limit))
            ):
                replay_task = running_task  # it ended early only where this one would
        replayed_layout = self._replayed_layout(replay_task, self._begun_stages.pop(layout_run, {}))
        if byte_limit is not None and replayed_layout.first_rank_bytes > byte_limit:
            SIMULATED_WORK.add(replayed_layout.first_rank_work)
            return replayed_layout.first_rank_bytes
        SIMULATED_WORK.add(replayed_layout.work)
        return replayed_layout.bytes

    def _replayed_layout(self, replay_task: ReplayTask, stage_tasks: Mapping[int, StageTask]) -> ReplayedLayout:
        """Returns a layout's replay, joined from the tasks of its stages if they were started."""
        if not stage_tasks:
            replayed_layout: ReplayedLayout = self._calls.result(replay_task)
            return replayed_layout
        replay_by_rank: dict[int, RankReplay] = {}

        def replay_rank(rank: int) -> RankReplay:
            if rank not in replay_by_rank:
                replay_by_rank.update(
                    self._calls.result(stage_tasks[replay_task.layout_run.layout.coordinates(rank).pp])
                )
            return replay_by_rank[rank]

        all_ranks = sorted(rank for stage_task in stage_tasks.values() for rank in stage_task.ranks)
        replayed_layout = _largest_replay(self._run_estimates.estimate_errors, replay_task, all_ranks, replay_rank)
        self._calls.forget(stage_tasks.values())
        return replayed_layout

    def _replay_task(self, layout_run: LayoutRun, byte_limit: int | None, has_no_limit: bool) -> ReplayTask:
        """Returns the replay task of a layout run. has_no_limit: whether `byte_limit` does not end the replay."""
        stage_peaks = () if layout_run.layout.pp == 1 else tuple(self._run_estimates.stage_peaks(layout_run))
        return ReplayTask(
            layout_run, stage_peaks, byte_limit, self._budget.remaining_work_units if has_no_limit else None
        )

    def _run_task(self, task: SearchTask) -> Any:
        """Runs a task, possibly in a forked process. The caller counts the task's work when it uses the result."""
        if isinstance(task, EstimateTask):
            assert self._estimate_layouts is not None
            return self._estimate_layouts(task)
        cluster = self._run_estimates.cluster(task.layout_run)
        if isinstance(task, ReplayTask):
            return replay_layout(cluster, task)
        return {rank: _replay_rank(cluster, rank) for rank in task.ranks}


def _pass_sizes(layout_run: LayoutRun) -> tuple[object, ...]:
    """Returns the parallel sizes that determine a layer's recorded pass; runs with equal sizes share it."""
    layout = layout_run.layout
    return layout.tp, layout.cp, layout.cp_comm, layout.ep, layout.sequence_parallel, layout_run.recompute
