"""Whether inference fits on a number of accelerators, the best layout, and the largest run that fits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

from ..accelerator import Hardware, MemoryFit
from ..device_memory.estimate import Memory
from ..errors import InputError
from ..frameworks.inference_rank import check_inference_layout, inference_rank, rank_memory
from ..frameworks.registry import framework_of, layout_of
from ..frozen import frozen
from ..parallel.divisors import divisors
from ..parallel.layout import ImpossibleLayout, Layout
from ..parallel.layout_request import LayoutRequest
from ..parallel.layout_search import (
    UNDIVIDED_HEADS,
    UNDIVIDED_WIDTHS,
    check_layer_count,
    even_stage_sizes,
    layout_refusal,
)
from ..parallel.rank_program import model_axes
from ..simulator.simulated_work import WorkBudget
from ..timing.device import DEFAULT_DOMAIN_SIZE
from .decoding import time_decoded_token
from .fit import FitAnswer, SettingChange, devices_option, fit, largest_run
from .timed_run import TimedRun

COMPUTER_VENDORS = ("Apple",)
"""Vendors whose chips are each a separate computer."""

MAX_TRIED_DEVICES = 2**10
"""Largest number of accelerators that is tried."""


def is_separate_computer(hardware: Hardware) -> bool:
    """Whether each accelerator of this kind is a separate computer: Apple's chips, processors, laptop GPUs."""
    return hardware.vendor in COMPUTER_VENDORS or hardware.is_processor or hardware.is_laptop_gpu


def _cannot_divide_replica(hardware: Hardware) -> bool:
    """Whether one replica cannot span several of these accelerators: separate computers, except Macs (MLX)."""
    return is_separate_computer(hardware) and hardware.interconnect is None and hardware.vendor not in COMPUTER_VENDORS


@frozen
class ReplicaFit:
    """A layout of one replica, with the memory of its largest rank.

    rank: number of that rank. fit: the verdict on it.
    decoding_run: a token of every user of all replicas; None where it does not fit, and without a time.
    seq: tokens of each sequence, where the number of accelerators decides them; None (default) for those of the run.
    """

    layout: Layout
    rank: int
    fit: MemoryFit
    decoding_run: TimedRun | None = None
    seq: int | None = None


@frozen
class ServingFitAnswer:
    """Whether inference fits on a number of accelerators, with the layouts that were compared.

    memory: the run on one device.
    tried_replicas: all layouts, most replicas first.
    best_replica: the layout that fits with most replicas; if none fits, the one that requires least.
    fewest_devices: fewest accelerators of one replica that fits, with all that divide its experts; None if none of the
        tried numbers suffices.
    layout_on_fewest: the layout of that replica.
    largest_run: the largest rank of the best layout, with the most users and longest sequences that fit on all ranks.
    untried_layout_count: number of layouts, with fewer replicas than the tried ones, that are not in `tried_replicas`.
    uncounted_layouts: layouts that divide the heads and widths, each with the reason why a rank cannot be counted.
    """

    memory: Memory
    tried_replicas: tuple[ReplicaFit, ...]
    best_replica: ReplicaFit
    fewest_devices: int | None
    layout_on_fewest: Layout | None
    largest_run: FitAnswer
    untried_layout_count: int = 0
    uncounted_layouts: tuple[UncountedLayout, ...] = ()


UncountedLayout: TypeAlias = tuple[Layout, str]
"""A layout with a rank that cannot be counted, and the reason."""


MAX_LAYERS = 10_000
"""The largest number of layers of a model whose serving layouts are searched."""


def fit_serving(model_memory: Memory, hardware: Hardware, layout_request: LayoutRequest) -> ServingFitAnswer:
    """Returns whether inference fits on `layout_request.devices` accelerators.

    layout_request: parallelism options; group sizes in it apply to every layout.
    Raises `InputError` where no layout can be tried at all.
    """
    check_layer_count(model_memory.spec, MAX_LAYERS)
    uncounted_layouts: list[UncountedLayout] = []
    tried_replicas, best_replica, untried_count = serving_replicas(
        model_memory, hardware, layout_request, uncounted_layouts
    )
    is_fitting = best_replica.fit.verdict != "no"
    fewest_layout = (
        best_replica.layout if is_fitting else _layout_on_more_devices(model_memory, hardware, layout_request)
    )
    fit_of_fullest_rank = fit(
        inference_rank(model_memory, best_replica.layout, best_replica.rank, model_memory.cuda_runtime), hardware
    )
    largest_batch, largest_seq = fit_of_fullest_rank.largest_batch, fit_of_fullest_rank.largest_seq
    device_changes: list[SettingChange] = []
    for rank in _first_and_last_ranks(best_replica.layout):
        if rank != best_replica.rank:
            rank_run = inference_rank(model_memory, best_replica.layout, rank, model_memory.cuda_runtime)
            largest_batch, largest_seq = largest_run(rank_run, hardware, largest_batch, largest_seq)
    if not is_fitting and fewest_layout is not None:
        larger_replica = _replica_of_layout(model_memory, hardware, fewest_layout)
        device_changes.append(
            SettingChange(devices_option(fewest_layout.world_size, fewest_layout), larger_replica.fit)
        )
    timed_replicas = [
        replace(tried_replica, decoding_run=time_decoded_token(model_memory, hardware, tried_replica.layout))
        if tried_replica.fit.verdict != "no"
        else tried_replica
        for tried_replica in tried_replicas
    ]
    return ServingFitAnswer(
        model_memory,
        tuple(timed_replicas),
        best_replica,
        None if fewest_layout is None else fewest_layout.replica_devices,
        fewest_layout,
        replace(
            fit_of_fullest_rank,
            largest_batch=largest_batch,
            largest_seq=largest_seq,
            find_changes=lambda: (*device_changes, *fit_of_fullest_rank.changes),
        ),
        untried_count,
        tuple(uncounted_layouts),
    )


WORK_OF_SEARCH = 3_000_000
"""Units of work after which a search ends, about 3 seconds on a machine of 2026. See `simulator/simulated_work.py`."""


def serving_replicas(
    model_memory: Memory,
    hardware: Hardware,
    layout_request: LayoutRequest,
    uncounted_layouts: list[UncountedLayout] | None = None,
) -> tuple[tuple[ReplicaFit, ...], ReplicaFit, int]:
    """Returns the layouts of inference on the request's accelerators, most replicas first, and the best layout.

    The best one is the first that fits, or the one that requires least. The third value is the number of layouts that
    were not tried, each with fewer replicas, since one fits and the work of the search is spent.
    uncounted_layouts: a list to which the layouts are added of which a rank cannot be counted. Default None.
    Raises `InputError` where no layout is possible, and where none fits before the work is spent.
    """
    assert layout_request.devices is not None
    tried_replicas: list[ReplicaFit] = []
    work_budget, best_replica = WorkBudget(WORK_OF_SEARCH), None
    uncounted_layouts = [] if uncounted_layouts is None else uncounted_layouts
    layouts = list(serving_layouts(model_memory, layout_request, layout_request.devices, uncounted_layouts))
    if (
        is_separate_computer(hardware)
        and hardware.interconnect is None
        and replace(layout_request, dp=None).is_undivided
    ):
        layouts_of_computers = [layout for layout in layouts if layout.replica_devices == 1]
        fits_on_one = any(
            _replica_of_layout(model_memory, hardware, layout).fit.verdict != "no" for layout in layouts_of_computers
        )
        if fits_on_one or _cannot_divide_replica(hardware):
            layouts = layouts_of_computers
    for layout_number, layout in enumerate(layouts, start=1):
        is_last_hope = best_replica is None and layout_number == len(layouts)  # the one that needs least per device
        if tried_replicas and work_budget.is_spent() and not is_last_hope:
            break
        tried_replicas.append(_replica_of_layout(model_memory, hardware, layout))
        if best_replica is None and tried_replicas[-1].fit.verdict != "no":
            best_replica = tried_replicas[-1]
    if not tried_replicas and uncounted_layouts:
        raise InputError(uncounted_layouts[0][1])
    if not tried_replicas:
        raise ImpossibleLayout(f"--devices {layout_request.devices}: no layout is possible")
    untried_count = len(layouts) - len(tried_replicas)
    if best_replica is None and untried_count:
        smallest_rank = layouts[-1]
        raise InputError(
            f"--devices {layout_request.devices}: none of the {len(tried_replicas):,} layouts with most replicas fits, "
            f"and the search ended before the other {untried_count:,}; expected a size of the replicas, such as "
            f"--tp {smallest_rank.tp} --pp {smallest_rank.pp}"
        )
    best_replica = best_replica or min(tried_replicas, key=lambda replica: replica.fit.needed_bytes)
    return tuple(tried_replicas), best_replica, untried_count


def serving_layouts(
    model_memory: Memory,
    layout_request: LayoutRequest,
    devices: int,
    uncounted_layouts: list[UncountedLayout] | None = None,
) -> Iterator[Layout]:
    """Yields the possible layouts on a number of devices: most replicas first, then fewest stages.

    uncounted_layouts: a list to which the layouts are added of which a rank cannot be counted. Default None.
    """
    spec = model_memory.spec
    layer_count, axes = spec.layer_count, model_axes(spec)
    stage_counts = divisors(devices, layer_count) if layout_request.pp is None else [layout_request.pp]
    tp_sizes = divisors(devices, DEFAULT_DOMAIN_SIZE) if layout_request.tp is None else [layout_request.tp]
    replica_sizes = sorted((tp * pp, pp, tp) for pp in stage_counts for tp in tp_sizes if devices % (tp * pp) == 0)
    for replica_size, pp, tp in replica_sizes:
        dp = devices // replica_size
        if pp > layer_count or layout_request.dp not in (None, dp):
            continue
        pp_layout = layout_request.pp_layout or (None if layer_count % pp == 0 else even_stage_sizes(layer_count, pp))
        try:
            replica_request = replace(layout_request, devices=devices, tp=tp, pp=pp, dp=dp, pp_layout=pp_layout)
            layout = layout_of(replica_request)
            check_inference_layout(layout, framework_of(layout_request))
        except ImpossibleLayout:
            continue
        if layout_refusal(axes, layout, layer_count, 1) in (UNDIVIDED_HEADS, UNDIVIDED_WIDTHS):
            continue
        try:
            for rank in _first_and_last_ranks(layout):
                inference_rank(model_memory, layout, rank, model_memory.cuda_runtime)
        except InputError as error:
            if uncounted_layouts is not None:
                uncounted_layouts.append((layout, str(error)))
        else:
            yield layout


def _first_and_last_ranks(layout: Layout) -> tuple[int, ...]:
    """Returns one rank of the first stage, which has the embedding, and one of the last, which has the head."""
    return (0,) if layout.pp == 1 else (0, layout.rank(pp=layout.pp - 1))


def _replica_of_layout(model_memory: Memory, hardware: Hardware, layout: Layout) -> ReplicaFit:
    """Returns a replica in a layout, with the memory of the rank that needs most."""
    fit_by_rank = {
        rank: rank_memory(inference_rank(model_memory, layout, rank, model_memory.cuda_runtime)).fit_on(hardware)
        for rank in _first_and_last_ranks(layout)
    }
    rank = max(fit_by_rank, key=lambda rank: (fit_by_rank[rank].needed_bytes, -rank))
    return ReplicaFit(layout, rank, fit_by_rank[rank])


def _layout_on_more_devices(model_memory: Memory, hardware: Hardware, layout_request: LayoutRequest) -> Layout | None:
    """Returns the first layout that fits on two times, four times, … the number of accelerators."""
    assert layout_request.devices is not None
    if _cannot_divide_replica(hardware):
        return None
    device_count = 2 * layout_request.devices
    while device_count <= MAX_TRIED_DEVICES:
        for layout in serving_layouts(model_memory, replace(layout_request, dp=None), device_count):
            if (
                layout.replica_devices == layout.world_size
                and _replica_of_layout(model_memory, hardware, layout).fit.verdict != "no"
            ):
                return layout
        device_count *= 2
    return None
