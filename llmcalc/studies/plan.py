"""Finds the layouts in which a model fits on a number of devices, and why others do not.

A layout fits if its largest rank fits in a replay on the allocator, as in `llmcalc memory`. An estimate of the peak of
its tensors is faster and decides which layouts are replayed, and in which order. It does not know the fragmentation of
the allocator, so a layout that was not replayed is listed separately, with an upper bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal, TypeAlias

from ..accelerator import Hardware
from ..device_memory.device_memory import without_garbage_collection
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.framework import Framework
from ..frameworks.peak_estimate import PeakEstimate
from ..frameworks.ranks import Cluster
from ..frameworks.registry import DEFAULT_FRAMEWORK, framework
from ..frozen import frozen
from ..parallel.layout import Layout
from ..parallel.layout_request import LayoutRequest
from ..parallel.layout_search import LayoutSearch, check_layer_count, search_layouts
from ..simulator.simulated_work import SIMULATED_WORK, WorkBudget
from ..timing.device import DEFAULT_DOMAIN_SIZE
from ..timing.time_ranges import TimeRange
from .layout_candidates import CONFIGURED_RECOMPUTE, Candidate, sorted_by_time
from .layout_estimates import FULL_RECOMPUTE, LayoutEstimates, RunEstimates
from .layout_order import TOO_MUCH_MEMORY, LayoutOrder, NearestPolicy, RankedLayouts, new_search_budget
from .layout_replays import LayoutReplays, ReplayTask, replay_layout
from .run_time import TimeSettings, TrainingTimes
from .step_size import default_batch, is_pretraining, usual_batch

OrderName: TypeAlias = Literal["time", "memory"]
"""The quantity by which a plan sorts its layouts."""

FEWER_LAYOUTS_ADVICE = "expected sizes of groups that leave fewer layouts (--tp, --pp, --ep)"
"""The advice in an error about a search that ended early."""

WORK_OF_COMPARISON = 2_000_000
"""Work units after which the search for the fastest layout under another framework ends."""

LISTED_LAYOUTS = 10
"""Number of layouts that a plan replays and lists, unless the user states another."""

SCREEN_LAYOUTS = 5
"""Number of layouts that a plan replays for a screen, which shows no more: the first choice and its rivals."""


@frozen
class ComparedLayout:
    """The fastest layout under another framework, or with longer micro-batches, shown beside a plan; None if none fits.

    framework_name: name of the framework.
    candidate: the layout, which fits; None (default) if none was found to fit.
    time_range: seconds of a step; None (default) without a time.
    has_unknown_layouts: whether the search left layouts that may fit, without one that fits; false by default.
    micro_batch: sequences of a micro-batch; 0 (default) for those of the plan.
    """

    framework_name: str
    candidate: Candidate | None = None
    time_range: TimeRange | None = None
    has_unknown_layouts: bool = False
    micro_batch: int = 0

    @property
    def framework(self) -> Framework:
        return framework(self.framework_name)


CompareFrameworks: TypeAlias = Callable[[str, int], tuple[ComparedLayout, ...]]
"""A function of (software stack, sequences per step) that returns the fastest layouts under other frameworks."""


@frozen
class LayoutPlan:
    """The sorted layouts of a model on a number of devices, with the search and the time estimates they come from.

    estimates: peak estimates of the model.
    hardware: the accelerator.
    devices: number of accelerators.
    global_batch: sequences per step of all devices.
    ranked_layouts: the layouts, sorted by whether they fit.
    layout_search: all layouts of the search.
    row_limit: number of layouts to replay.
    training_times: the seconds of a step of any layout; None if layouts are ordered by memory.
    untimed_reason: the reason why they are not timed, where the user did not choose; empty otherwise.
    other_plans: plans of the same run under other frameworks, whose layouts fit too.
    compared_layouts: the fastest layouts under other frameworks, for a run that names none.
    is_batch_assumed: whether nobody stated the global batch.
    version: the framework's version; empty for the newest.
    untried_framework_sentences: sentences on usual frameworks that cannot train the model, if no layout fits.
    published_step_tokens: tokens of the model's published training step; None (default) if not known.
    longer_micro_batches: the fastest layout with more sequences in a micro-batch, if it is faster than the first.
    """

    estimates: LayoutEstimates
    hardware: Hardware
    devices: int
    global_batch: int
    ranked_layouts: RankedLayouts
    layout_search: LayoutSearch
    row_limit: int
    training_times: TrainingTimes | None = None
    untimed_reason: str = ""
    other_plans: tuple[LayoutPlan, ...] = ()
    compared_layouts: tuple[ComparedLayout, ...] = ()
    is_batch_assumed: bool = False
    version: str = ""
    untried_framework_sentences: tuple[str, ...] = ()
    longer_micro_batches: ComparedLayout | None = None
    published_step_tokens: int | None = None

    @property
    def assumed_batch_option(self) -> str:
        """The option `--global-batch` if the plan assumed a batch smaller than a micro-batch per device; else empty."""
        is_small = self.is_batch_assumed and self.global_batch < self.devices * int(self.memory.states.workload.batch)
        return f"--global-batch {self.global_batch}" if is_small else ""

    @property
    def larger_batch_of_cost(self) -> int:
        """The sequences per step that `llmcalc cost` assumes if they are more than this plan's; otherwise 0."""
        model_memory, sequence_tokens = self.memory, int(self.memory.states.workload.seq)
        if not self.is_batch_assumed or not is_pretraining(model_memory.spec, model_memory.settings.lora_rank):
            return 0
        cost_batch = usual_batch(sequence_tokens, self.devices, self.published_step_tokens)
        return cost_batch if cost_batch > self.global_batch else 0

    @property
    def step_tokens(self) -> int:
        """The tokens that all devices process in a training step."""
        return self.global_batch * int(self.memory.states.workload.seq)

    @property
    def memory(self) -> Memory:
        """The model's memory under the plan's training settings."""
        return self.estimates.memory

    @property
    def framework(self) -> Framework:
        return self.estimates.framework

    @property
    def candidates_in_order(self) -> list[tuple[LayoutPlan, Candidate]]:
        """The candidates of all plans, fitting ones first, each with the `LayoutPlan` of its framework.

        Fitting layouts come as listed, then layouts that may fit but were not replayed.
        """
        plans = (self, *self.other_plans)
        return [
            *self.fitting_candidates_of_frameworks,
            *((plan, candidate) for plan in plans for candidate in plan.ranked_layouts.unreplayed_candidates),
        ]

    @property
    def first_candidate(self) -> tuple[LayoutPlan, Candidate | None]:
        """The first layout that fits, with its framework's `LayoutPlan`; this plan and None if none fits."""
        return next(iter(self.fitting_candidates_of_frameworks), (self, None))

    @cached_property
    def fitting_candidates_of_frameworks(self) -> list[tuple[LayoutPlan, Candidate]]:
        """The layouts that fit, each with its framework's `LayoutPlan`; sorted by time if all times are known."""
        layouts_and_plans = [
            (framework_plan, candidate)
            for framework_plan in (self, *self.other_plans)
            for candidate in framework_plan.ranked_layouts.fitting_candidates
        ]
        if self.other_plans and all(plan.training_times is not None for plan, _ in layouts_and_plans):
            candidates = [candidate for _, candidate in layouts_and_plans]
            order_by_candidate_id = {
                id(candidate): time_order for time_order, candidate in enumerate(sorted_by_time(candidates))
            }
            layouts_and_plans.sort(key=lambda layout_and_plan: order_by_candidate_id[id(layout_and_plan[1])])
        return layouts_and_plans[: self.row_limit]

    def step_time_range(self, candidate: Candidate) -> TimeRange | None:
        """Returns the range of a layout's seconds per step; None without a time estimate."""
        if self.training_times is None or candidate.seconds is None:
            return None
        training_times = self.training_times.with_memory(self.estimates.with_recompute(candidate.recompute).memory)
        return training_times.time_range(candidate.seconds, candidate.layout, candidate.micro_batches)

    def host_wait_share(self, candidate: Candidate) -> float:
        """Returns the fraction of a layout's step in which kernels wait for the host; 0 without a time estimate."""
        if self.training_times is None:
            return 0.0
        training_times = self.training_times.with_memory(self.estimates.with_recompute(candidate.recompute).memory)
        timed_run = training_times.timed_run(candidate.layout, candidate.micro_batches)
        return timed_run.host_wait_seconds / timed_run.seconds

    def _run_memory(self, candidate: Candidate) -> Memory:
        """Returns the model's memory with a candidate's recomputation and micro-batches."""
        run_memory = self.estimates.with_recompute(candidate.recompute).memory
        return run_memory.with_changes(num_microbatches=candidate.micro_batches)

    @cached_property
    def bytes_with_expandable_segments(self) -> int | None:
        """The bytes that the layout nearest to fitting needs with torch's expandable segments, if it then fits.

        None if a layout fits without them, if the run has them already, if the search ended early, and if it does not
        fit with them.
        """
        nearest_candidate = self.ranked_layouts.nearest_candidate
        has_fit = self.ranked_layouts.fitting_candidates or self.ranked_layouts.unreplayed_candidates
        if (
            has_fit
            or nearest_candidate is None
            or not nearest_candidate.may_fit
            or self.ranked_layouts.ended_early
            or self.memory.cuda_runtime.has_expandable_segments
        ):
            return None
        run_memory = self._run_memory(nearest_candidate)
        run_memory = replace(run_memory, cuda_runtime=replace(run_memory.cuda_runtime, has_expandable_segments=True))
        required_bytes = replayed_bytes(run_memory, self.framework, self.version, nearest_candidate)
        return required_bytes if required_bytes <= nearest_candidate.capacity else None

    @cached_property
    def layout_count_fitting_with_recompute(self) -> int | None:
        """The number of layouts that fit only with every layer recomputed.

        None if enough layouts fit without it, if the user set recomputation, if the plan tried it, or ended early.
        """
        is_recompute_chosen = self.memory.settings.recompute is not None or self.training_times is not None
        if (
            is_recompute_chosen
            or self.ranked_layouts.ended_early
            or TOO_MUCH_MEMORY not in self.ranked_layouts.refusal_counts
            or len(self.ranked_layouts.fitting_candidates) >= self.row_limit
        ):
            return None
        peak_estimate, capacity_bytes = (
            self.estimates.with_full_recompute.estimates_as_configured,
            self.hardware.capacity_bytes,
        )
        return len(
            [
                layout
                for layout in self.layout_search.possible_layouts
                if tensors_fit(peak_estimate, *layout, capacity_bytes)
            ]
        )


MAX_SEARCHED_LAYERS = 256
"""The largest number of layers of a model whose training layouts are searched."""


@without_garbage_collection()
def plan_layouts(
    model_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    global_batch: int | None,
    row_limit: int,
    layout_estimates: LayoutEstimates | None = None,
    suggests_nearest: NearestPolicy = "always",
    order_name: OrderName | None = "memory",
    time_settings: Callable[[Framework], TimeSettings] | None = None,
    may_recompute: bool = True,
    budget: WorkBudget | None = None,
    tries_variants: bool = True,
    replay_limit: int | None = None,
    compare_frameworks: CompareFrameworks | None = None,
) -> LayoutPlan:
    """Plans the training of a model on `layout_request.devices` accelerators with the request's framework.

    layout_request: parallelism options; group sizes in it apply to every layout.
    global_batch: sequences per step; None for one micro-batch per accelerator, of at most a usual step (`step_size`).
    row_limit: number of layouts to replay on the allocator.
    layout_estimates: peak estimates of the model under that framework; default new ones.
    suggests_nearest: see `LayoutOrder.plan`.
    order_name: order of the layouts, by memory (default) or by time; None for time where it can be estimated.
    time_settings: (framework) → settings of time; None for those of its own stack.
    may_recompute: whether a plan by time tries more recomputation than the run's own; true by default.
    budget: the work of the search; default `WORK_OF_SEARCH`.
    tries_variants: as in `search_layouts`.
    replay_limit: as in `LayoutOrder.plan`.
    compare_frameworks: finds layouts of other frameworks, for a plan by time; None (default) for none.
    Raises `InputError` for features that the framework lacks or llmcalc does not model, if the number of micro-batches
    is given, and if the search ended early and nothing that it tried may fit.
    """
    assert layout_request.devices is not None
    framework_record = framework(layout_request.framework or DEFAULT_FRAMEWORK)
    memory_use, spec = model_memory.states, model_memory.spec
    interconnect = hardware.interconnect
    domain_size = interconnect.domain_size if interconnect is not None else None
    node_devices = min(DEFAULT_DOMAIN_SIZE, domain_size or DEFAULT_DOMAIN_SIZE)
    micro_batches = model_memory.settings.num_microbatches
    if micro_batches is not None:
        raise InputError(
            f"--num-microbatches {micro_batches}: in a plan it follows from the layout and --global-batch, the "
            "sequences of a step of all devices; expected --global-batch"
        )
    check_layer_count(spec, MAX_SEARCHED_LAYERS)
    micro_batch, seq = int(memory_use.workload.batch), int(memory_use.workload.seq)
    is_batch_assumed = global_batch is None
    if global_batch is None:
        global_batch = default_batch(seq, layout_request.devices, micro_batch)
    layout_search = search_layouts(
        spec,
        layout_request.devices,
        global_batch,
        micro_batch,
        seq,
        framework_record.layout_rules,
        layout_request,
        node_devices,
        tries_variants,
    )
    layout_estimates = layout_estimates or LayoutEstimates(model_memory, framework_record)
    layout_times, untimed_reason = _layout_times(model_memory, hardware, order_name, time_settings, framework_record)
    framework_version = layout_request.framework_version or ""
    run_estimates = RunEstimates(layout_estimates, framework_version, layout_times)
    budget = budget or new_search_budget()
    recompute_modes = (
        _recompute_modes(model_memory, framework_record)
        if may_recompute and layout_times is not None
        else (CONFIGURED_RECOMPUTE,)
    )
    with LayoutReplays(run_estimates, budget) as replays:
        layout_order = LayoutOrder(
            layout_search, hardware.capacity_bytes, run_estimates, replays, recompute_modes, budget
        )
        ranked_layouts = (
            layout_order.plan_of_fastest()
            if row_limit == 1 and suggests_nearest == "never"
            else layout_order.plan(row_limit, suggests_nearest, replay_limit)
        )
    is_incomplete = ranked_layouts.ended_early and not (
        ranked_layouts.fitting_candidates or ranked_layouts.unreplayed_candidates
    )
    compared_layouts: tuple[ComparedLayout, ...] = ()
    if compare_frameworks is not None and layout_times is not None and not is_incomplete:
        compared_layouts = compare_frameworks(layout_times.settings.stack, global_batch)
    layout_plan = LayoutPlan(
        layout_estimates,
        hardware,
        layout_request.devices,
        global_batch,
        ranked_layouts,
        layout_search,
        row_limit,
        layout_times,
        untimed_reason,
        is_batch_assumed=is_batch_assumed,
        version=framework_version,
        compared_layouts=compared_layouts,
    )
    if is_incomplete:
        raise incomplete_search_error(layout_plan)
    return layout_plan


def first_fitting_plan(plans: Sequence[LayoutPlan]) -> LayoutPlan:
    """Returns the first plan with a fitting layout, to which other such plans are added; else the last plan."""
    fitting_plans = [plan for plan in plans if plan.ranked_layouts.fitting_candidates]
    return replace(fitting_plans[0], other_plans=tuple(fitting_plans[1:])) if fitting_plans else plans[-1]


class IncompleteSearchError(InputError):
    """Raised if a search ended early without a layout that fits, although one may exist."""


def incomplete_search_error(plan: LayoutPlan) -> IncompleteSearchError:
    """Returns the error of a search that ended early without a layout that fits, although one may exist."""
    ranked_layouts = plan.ranked_layouts
    return IncompleteSearchError(
        f"--devices {plan.devices}: nothing fits so far, and the search ended before all "
        f"{ranked_layouts.tried_count:,} layouts were tried and replayed; {FEWER_LAYOUTS_ADVICE}"
    )


def _recompute_modes(model_memory: Memory, framework_record: Framework) -> tuple[str, ...]:
    """Returns the values of `--recompute` that a plan tries, from least recomputation to least memory.

    The values are none, selective and full, unless the user chose one.
    """
    if model_memory.settings.recompute is not None:
        return (CONFIGURED_RECOMPUTE,)
    return CONFIGURED_RECOMPUTE, framework_record.selective_recompute, FULL_RECOMPUTE


def _layout_times(
    model_memory: Memory,
    hardware: Hardware,
    order_name: OrderName | None,
    time_settings: Callable[[Framework], TimeSettings] | None,
    framework_record: Framework,
) -> tuple[TrainingTimes | None, str]:
    """Returns the estimator of layouts' seconds per step, or the reason why they cannot be estimated."""
    if order_name == "memory":
        return None, ""
    if time_settings is None:
        run_settings = TimeSettings(
            framework_record.time_stack_name(None, False, model_memory.spec.has_experts), loss=framework_record.loss
        )
    else:
        run_settings = time_settings(framework_record)
    try:
        return TrainingTimes(model_memory, hardware, run_settings), ""
    except InputError as error:
        if order_name == "time":
            raise
        return None, str(error)


def replayed_bytes(model_memory: Memory, framework: Framework, framework_version: str, candidate: Candidate) -> int:
    """Returns the bytes of a layout's largest rank, replayed on the simulated allocator as `llmcalc memory` does.

    model_memory: the model and its run, with the number of its micro-batches.
    """
    cluster = Cluster.with_framework(model_memory, candidate.layout, framework, framework_version)
    replayed_layout = replay_layout(cluster, ReplayTask(candidate.run))
    SIMULATED_WORK.add(replayed_layout.work)
    return replayed_layout.bytes


def tensors_fit(memory_estimate: PeakEstimate, layout: Layout, micro_batches: int, capacity_bytes: int) -> bool:
    """Whether the tensors of a layout's largest rank fit in `capacity_bytes`."""
    try:
        lower_bound_bytes = memory_estimate.lower_bound_bytes(layout)
        return (
            lower_bound_bytes <= capacity_bytes
            and memory_estimate.largest_rank_bytes(layout, micro_batches) <= capacity_bytes
        )
    except InputError:
        return False
