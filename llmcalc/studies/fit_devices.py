"""Whether a run fits on a number of accelerators, the fewest on which it fits, and changes that make it fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ..accelerator import Hardware, MemoryFit
from ..costs.context_length import learned_positions
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.framework import Framework
from ..frameworks.ranks import Cluster, rank_with_most_memory
from ..frameworks.registry import DEFAULT_FRAMEWORK, framework
from ..frozen import frozen
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.layout_request import LayoutRequest
from ..parallel.layout_search import sequence_multiple
from ..simulator.simulated_work import WorkBudget
from .fit import MAX_BATCH, MAX_SEQ, SettingChange, devices_option, largest_fitting_number
from .layout_candidates import Candidate
from .layout_estimates import FULL_RECOMPUTE, LayoutEstimates
from .layout_order import NearestPolicy, new_search_budget
from .plan import (
    LayoutPlan,
    OrderName,
    incomplete_search_error,
    plan_layouts,
    replayed_bytes,
)
from .step_size import usual_micro_batches

MAX_TRIED_DEVICES = 2**16
"""Largest number of accelerators that is tried."""


@frozen
class DevicesFitAnswer:
    """Whether a run fits on a number of accelerators, with the fewest that suffice, and changes.

    layout_plan: the plan of all layouts.
    best_candidate: the best layout; it fits if any does.
    fit: the verdict on the best layout.
    fewest_devices: fewest accelerators on which some layout fits; None if none of the tried numbers suffices.
    layout_on_fewest: the layout on the fewest accelerators.
    largest_batch: largest number of sequences that fits with the best layout; 0 if none does.
    largest_seq: largest sequence length that fits with the best layout; 0 if none does.
    changes: changes that make it fit; empty if the run fits with the estimated fragmentation.
    ended_early: whether the work of the search was spent: fewer accelerators and larger runs may fit too.
    other_framework: the framework of more accelerators, if it is another one; else None.
    """

    layout_plan: LayoutPlan
    best_candidate: Candidate
    fit: MemoryFit
    fewest_devices: int | None
    layout_on_fewest: Candidate | None
    largest_batch: int
    largest_seq: int
    changes: tuple[SettingChange, ...]
    ended_early: bool = False
    other_framework: Framework | None = None

    @property
    def needed_framework(self) -> Framework | None:
        """The framework in which the run fits on the fewest accelerators; None if it fits on no number."""
        if self.fewest_devices is None:
            return None
        needs_more_devices = self.fewest_devices > self.layout_plan.devices
        return self.other_framework if needs_more_devices and self.other_framework else self.layout_plan.framework

    @property
    def memory(self) -> Memory:
        return self.layout_plan.memory


def fit_devices(
    model_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    global_batch: int | None,
    run_on_several: tuple[Memory, LayoutRequest] | None = None,
) -> DevicesFitAnswer:
    """Returns whether training fits on `layout_request.devices` accelerators in the request's framework.

    run_on_several: the run and the request with the framework for several accelerators; None for the same.
    global_batch: sequences per step; None for one micro-batch per accelerator, or, if all sizes of the layout are
        typed, for as many micro-batches as `llmcalc memory` assumes.
    Raises `InputError` where no layout can be tried at all.
    """
    assert layout_request.devices is not None
    work_budget = new_search_budget()

    def search_under_framework(run_memory: Memory, framework_request: LayoutRequest) -> DevicesSearch:
        framework_record = framework(framework_request.framework or DEFAULT_FRAMEWORK)
        return DevicesSearch(
            LayoutEstimates(run_memory, framework_record), hardware, framework_request, global_batch, work_budget
        )

    devices_search = search_under_framework(model_memory, layout_request)
    if run_on_several is not None:
        devices_search = replace(devices_search, several_devices_search=search_under_framework(*run_on_several))
    layout_plan = devices_search.plan_devices(layout_request.devices)
    if layout_plan.ranked_layouts.ended_early and not layout_plan.ranked_layouts.fitting_candidates:
        raise incomplete_search_error(layout_plan)
    best_candidate = _best_candidate(layout_plan)
    if best_candidate is None:
        most_frequent_reason = layout_plan.ranked_layouts.most_frequent_refusal(layout_request.undivided_devices_text)
        error_parts = f"--devices {layout_request.devices}: no layout is possible", most_frequent_reason
        raise ImpossibleLayout(": ".join(filter(None, error_parts)))
    best_fit = devices_search.fit_of(best_candidate)
    fewest_devices, fewest_candidate = _fewest_devices(devices_search, layout_plan)
    largest_batch = largest_seq = 0
    if best_fit.verdict == "fits":
        workload, longest_length = model_memory.states.workload, learned_positions(model_memory.spec) or MAX_SEQ
        largest_batch = _largest_number(devices_search, best_candidate, "batch", 1, int(workload.batch), MAX_BATCH)
        size_unit = _length_multiple(best_candidate.layout)
        largest_seq = _largest_number(
            devices_search, best_candidate, "seq", size_unit, int(workload.seq), longest_length
        )
    setting_changes: tuple[SettingChange, ...] = ()
    if best_fit.verdict != "fits":
        setting_changes = tuple(
            _changes_that_fit(devices_search, layout_plan.devices, fewest_devices, fewest_candidate)
        )
    return DevicesFitAnswer(
        layout_plan,
        best_candidate,
        best_fit,
        fewest_devices,
        fewest_candidate,
        largest_batch,
        largest_seq,
        setting_changes,
        devices_search.budget.is_spent(),
        None
        if devices_search.several_devices_search is None
        else devices_search.several_devices_search.estimates.framework,
    )


@frozen
class DevicesSearch:
    """A search for a layout that fits: the run, the accelerator and the parallelism options.

    global_batch: as in `fit_devices`. budget: the work of the search for all numbers of accelerators.
    several_devices_search: the question about several accelerators, of which another framework is usual; default this
        one.
    """

    estimates: LayoutEstimates
    hardware: Hardware
    layout_request: LayoutRequest
    global_batch: int | None
    budget: WorkBudget
    several_devices_search: DevicesSearch | None = None

    def plan_devices(
        self,
        devices: int,
        suggests_nearest: NearestPolicy = "if none fits",
        order_name: OrderName | None = None,
        tries_variants: bool = False,
    ) -> LayoutPlan:
        """Ranks the layouts on `devices` accelerators and replays the memory allocations of the best one.

        suggests_nearest: as in `plan`.
        order_name: order of the layouts; None (default) is that of `llmcalc plan`: by time where it can be estimated.
        tries_variants: as in `search_layouts`; default false.
        """
        layout_request = replace(self.layout_request, devices=devices)
        return plan_layouts(
            self.estimates.memory,
            self.hardware,
            layout_request,
            self.global_batch or self._default_batch(layout_request),
            1,
            self.estimates,
            suggests_nearest,
            order_name,
            may_recompute=False,
            budget=self.budget,
            tries_variants=tries_variants,
        )

    def _default_batch(self, layout_request: LayoutRequest) -> int:
        """Returns the default sequences per step: a micro-batch per device; for a full layout `memory`'s default."""
        micro_batch, devices = int(self.estimates.memory.states.workload.batch), layout_request.devices
        assert devices is not None
        if not layout_request.has_all_sizes:
            return devices * micro_batch
        tp, pp, cp = (degree or 1 for degree in (layout_request.tp, layout_request.pp, layout_request.cp))
        return devices // (tp * pp * cp) * usual_micro_batches(pp) * micro_batch

    def fit_of(self, candidate: Candidate) -> MemoryFit:
        """Returns whether a layout fits, as `llmcalc memory` computes it.

        The ranks of a layout that does not fit are replayed again if its tensors may fit, for the allocator's free
        blocks, and for what the driver may move to the host.
        """
        if candidate.headroom >= 0 or not candidate.may_fit:
            return MemoryFit(self.hardware, candidate.device_bytes)
        run_memory = self.estimates.memory.with_changes(num_microbatches=candidate.micro_batches)
        framework_version = self.layout_request.framework_version or ""
        cluster = Cluster.with_framework(run_memory, candidate.layout, self.estimates.framework, framework_version)
        rank_memories = [
            cluster.rank_memory(rank, run_memory.cuda_runtime) for rank in cluster.ranks_that_may_need_most
        ]
        return rank_with_most_memory(rank_memories).device.fit_on(self.hardware)

    def best_fitting_layout(self, devices: int) -> Candidate | None:
        """Returns the best layout that fits on these accelerators, also with options added to a typed one; or None."""
        try:
            return next(
                iter(
                    self.plan_devices(devices, "never", "memory", tries_variants=True).ranked_layouts.fitting_candidates
                ),
                None,
            )
        except InputError:
            return None


def _best_candidate(plan: LayoutPlan) -> Candidate | None:
    """Returns the first layout that fits; if none fits, the one that needs the least memory."""
    ranked_layouts = plan.ranked_layouts
    return (
        ranked_layouts.fitting_candidates[0] if ranked_layouts.fitting_candidates else ranked_layouts.nearest_candidate
    )


def _fewest_devices(devices_search: DevicesSearch, plan: LayoutPlan) -> tuple[int | None, Candidate | None]:
    """Returns the fewest accelerators, of n, n/2, n/4, … and 2n, 4n, …, that have a layout that fits.

    Where all sizes are typed and do not fit, n accelerators may do with other options, such as ZeRO.
    """
    planned_devices = plan.devices
    if plan.ranked_layouts.fitting_candidates:
        return _fewest_devices_by_halving(devices_search, planned_devices, plan.ranked_layouts.fitting_candidates[0])
    if replace(devices_search.layout_request, devices=planned_devices).has_all_sizes:
        fitting_candidate = devices_search.best_fitting_layout(planned_devices)
        if fitting_candidate is not None:
            return planned_devices, fitting_candidate
    while 2 * planned_devices <= MAX_TRIED_DEVICES and not devices_search.budget.is_spent():
        planned_devices *= 2
        candidate_that_fits = (devices_search.several_devices_search or devices_search).best_fitting_layout(
            planned_devices
        )
        if candidate_that_fits is not None:
            return planned_devices, candidate_that_fits
    return None, None


def _fewest_devices_by_halving(
    devices_search: DevicesSearch, devices: int, best_candidate: Candidate
) -> tuple[int, Candidate]:
    """Returns the fewest accelerators, of n, n/2, n/4, …, that have a layout that fits, and this layout.

    With one micro-batch per accelerator, a layout that fits also fits with twice the replicas. So the halves are
    searched by bisection. With a fixed batch they are tried in order.
    """
    halving_count, failing_halving_count = 0, (devices & -devices).bit_length()
    while halving_count + 1 < failing_halving_count and not devices_search.budget.is_spent():
        if devices_search.global_batch is not None:
            next_halving_count = halving_count + 1
        else:
            next_halving_count = (halving_count + failing_halving_count) // 2
        halved_candidate = devices_search.best_fitting_layout(devices >> next_halving_count)
        if halved_candidate is None:
            failing_halving_count = next_halving_count
        else:
            halving_count, best_candidate = next_halving_count, halved_candidate
    return devices >> halving_count, best_candidate


def _length_multiple(layout: Layout) -> int:
    """Returns the number of which sequence lengths must be multiples, so that ranks get equal parts."""
    return math.lcm(sequence_multiple(layout.cp), layout.cp * (layout.tp if layout.sequence_parallel else 1))


SEARCH_REPLAYS = 4
"""Number of replays in the search for the largest run; there are more only if none fits."""

SEARCH_TOLERANCE = 0.01
"""Relative width of the search interval at which the search ends; the allocator's blocks are larger."""


def _largest_number(
    devices_search: DevicesSearch,
    best_candidate: Candidate,
    setting_name: str,
    size_unit: int,
    start_size: int,
    maximum: int,
) -> int:
    """Returns the most sequences or tokens that fit in a layout, in steps of `size_unit`; 0 if none fits.

    The bytes of tensors are estimated for any number. The allocator's overhead is known where it was replayed, and is
    interpolated between two of these numbers. If an interpolated number does not fit, its missing bytes are kept free
    in the next attempt, and twice as many after another failure.
    """
    model_memory = devices_search.estimates.memory
    framework = devices_search.estimates.framework
    capacity_bytes = devices_search.hardware.capacity_bytes
    framework_version, micro_batches = (
        devices_search.layout_request.framework_version or "",
        best_candidate.micro_batches,
    )

    @cache
    def tensor_bytes(candidate_size: int) -> int:
        return framework.estimate(model_memory.with_changes(**{setting_name: candidate_size})).largest_rank_bytes(
            best_candidate.layout, micro_batches
        )

    fitting_point = (start_size, best_candidate.device_bytes - tensor_bytes(start_size))
    too_large_point = (start_size, 0)
    margin_bytes = 0

    def needed_bytes(candidate_size: int) -> int:
        allocator_overhead, size_distance = fitting_point[1], max(0, candidate_size - fitting_point[0])
        if too_large_point[0] > fitting_point[0]:
            allocator_overhead += (
                (too_large_point[1] - allocator_overhead) * size_distance // (too_large_point[0] - fitting_point[0])
            )
        return tensor_bytes(candidate_size) + allocator_overhead + margin_bytes

    replay_count = 0
    while (replay_count < SEARCH_REPLAYS and not devices_search.budget.is_spent()) or fitting_point[0] == start_size:
        is_too_large_known = too_large_point[0] > fitting_point[0]
        largest_size = size_unit * largest_fitting_number(
            lambda number: needed_bytes(size_unit * number),
            capacity_bytes,
            max(1, fitting_point[0] // size_unit),
            too_large_point[0] // size_unit - 1 if is_too_large_known else maximum // size_unit,
        )
        if largest_size <= fitting_point[0]:
            break
        tensor_bytes_at_largest_size = tensor_bytes(largest_size)
        candidate_run = model_memory.with_changes(num_microbatches=micro_batches, **{setting_name: largest_size})
        device_bytes = replayed_bytes(candidate_run, framework, framework_version, best_candidate)
        replay_count += 1
        if device_bytes > capacity_bytes:
            margin_bytes = (
                max(2 * margin_bytes, device_bytes - capacity_bytes) if too_large_point[0] > fitting_point[0] else 0
            )
            too_large_point = largest_size, device_bytes - tensor_bytes_at_largest_size
            continue
        fitting_point, margin_bytes = (largest_size, device_bytes - tensor_bytes_at_largest_size), 0
        if too_large_point[0] <= fitting_point[0] or too_large_point[0] - fitting_point[0] <= max(
            size_unit, SEARCH_TOLERANCE * fitting_point[0]
        ):
            break
    return fitting_point[0] // size_unit * size_unit


def _changes_that_fit(
    devices_search: DevicesSearch, devices: int, fewest_devices: int | None, fewest_candidate: Candidate | None
) -> Iterator[SettingChange]:
    """Yields changes that make the run fit: completing a typed layout, full recomputation, more accelerators."""
    if fewest_candidate is not None and fewest_devices == devices:
        yield SettingChange(fewest_candidate.layout.options(), devices_search.fit_of(fewest_candidate))
    layout_estimates = devices_search.estimates
    if layout_estimates.memory.settings.recompute in (None, "none") and not devices_search.budget.is_spent():
        try:
            recomputing_question = replace(devices_search, estimates=layout_estimates.with_full_recompute)
            plan_with_recompute = recomputing_question.plan_devices(devices)
        except InputError:
            plan_with_recompute = None
        recomputed_candidate = None if plan_with_recompute is None else _best_candidate(plan_with_recompute)
        if recomputed_candidate is not None:
            yield SettingChange(
                f"--recompute {FULL_RECOMPUTE} {recomputed_candidate.layout.options()}".strip(),
                recomputing_question.fit_of(recomputed_candidate),
            )
    if fewest_devices is not None and fewest_devices != devices and fewest_candidate is not None:
        other_question = devices_search.several_devices_search if fewest_devices > devices else None
        framework_option = "" if other_question is None else f" --framework {other_question.estimates.framework.name}"
        yield SettingChange(
            devices_option(fewest_devices, fewest_candidate.layout) + framework_option,
            MemoryFit(devices_search.hardware, fewest_candidate.device_bytes),
        )
