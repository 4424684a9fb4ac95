"""Finds the possible layouts that are nearest to an impossible layout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice, product
from math import gcd, log2
from typing import Any

from ..errors import InputError
from ..flow.axis import Axis
from ..model import ModelSpec
from .divisors import divisors
from .layout import ImpossibleLayout, Layout, Schedule, layers_of_stages
from .layout_request import LayoutRequest
from .layout_search import even_stage_sizes, sequence_multiple
from .rank_model import rank_model
from .rank_program import (
    COPIED_AXES,
    TENSOR_PARALLEL_AXES,
    UNEVEN_AXES,
    RankAxes,
    check_experts,
    check_stages,
    model_axes,
)

GROUP_SIZES = ("tp", "pp", "cp", "dp", "ep", "vpp", "etp")
"""Names of the group sizes that a suggested layout may change."""

SIZES_TO_TRY = 4
"""Number of sizes that are tried for each parallel group."""

LARGEST_SIZE_FACTOR = 4
"""Largest factor by which a suggested group size may differ from the requested size."""

REQUESTED_SIZE_WEIGHT, UNEVEN_STAGES_DISTANCE = 2.0, 0.3
"""Distance weights: of a change to a requested size (1 for others), and of stages with unequal numbers of layers."""


@contextmanager
def suggest_nearest_layouts(
    spec: ModelSpec,
    layout_request: LayoutRequest,
    seq: int | None = None,
    most_layouts: int = 3,
    check_layout: Callable[[Layout], object] | None = None,
) -> Iterator[None]:
    """Adds the nearest possible layouts to the error about an impossible layout.

    Raises `InputError` for a request to divide more than the model has: experts, or layers into more stages.
    seq: tokens of a sequence; None (default) if unknown.
    most_layouts: largest number of layouts in the error.
    check_layout: raises `InputError` for a layout that the framework refuses; None (default) for no such check.
    """
    check_experts(spec, layout_request.ep or 1)
    try:
        if layout_request.pp_layout is None:
            check_stages(spec, layout_request.pp or 1)
        yield
    except ImpossibleLayout as error:
        if not layout_request.has_options:
            raise
        suggestions_text = nearest_layouts_text(spec, layout_request, seq, most_layouts, check_layout)
        raise InputError(f"{error}; {suggestions_text}" if suggestions_text else str(error)) from None


def nearest_layouts_text(
    spec: ModelSpec,
    layout_request: LayoutRequest,
    seq: int | None = None,
    most_layouts: int = 3,
    check_layout: Callable[[Layout], object] | None = None,
) -> str:
    """Returns options such as `nearest layouts: --tp 4; --tp 2 --dp 2`; empty if no layout is possible.

    check_layout: see `suggest_nearest_layouts`.
    """
    nearby_layouts = nearest_layouts(spec, layout_request, seq)
    accepted_layouts = (
        layout for layout in nearby_layouts if check_layout is None or _is_accepted_layout(layout, check_layout)
    )
    option_texts = [_options_text(layout, layout_request.devices) for layout in islice(accepted_layouts, most_layouts)]
    return f"nearest layouts: {'; '.join(option_texts)}" if option_texts else ""


def _is_accepted_layout(layout: Layout, check_layout: Callable[[Layout], object]) -> bool:
    """Whether `check_layout` raises no error for a layout."""
    try:
        check_layout(layout)
    except InputError:
        return False
    return True


def _options_text(layout: Layout, stated_devices: int | None) -> str:
    """Returns the options of a layout as text, with `--devices` if the layout has another number than stated."""
    devices_text = "" if stated_devices in (None, layout.world_size) else f"--devices {layout.world_size} "
    return f"{devices_text}{layout.options()}".strip() or "one device"


def nearest_layouts(spec: ModelSpec, layout_request: LayoutRequest, seq: int | None = None) -> Iterator[Layout]:
    """Yields the possible layouts of the model, the nearest to the requested layout first.

    seq: tokens of a sequence, which ranks may divide; None (default) if unknown.

    The distance of two sizes is the logarithm of their ratio, and counts twice if the size was given.
    """
    layer_count = spec.layer_count
    previous_layouts: set[Layout] = set()
    nearby_layouts = _nearby_layouts(spec, layout_request, layer_count)
    for _, layout in sorted(nearby_layouts, key=lambda candidate: (candidate[0], candidate[1].options())):
        if (
            layout not in previous_layouts
            and _divides_sequence(layout, seq)
            and _is_possible_layout(spec, layout, layer_count)
        ):
            yield layout
        previous_layouts.add(layout)


def _nearby_layouts(spec: ModelSpec, layout_request: LayoutRequest, layer_count: int) -> Iterator[tuple[float, Layout]]:
    """Yields (distance from the requested layout, layout) for layouts with group sizes near the requested sizes."""
    expert_count = spec.routed_experts
    axes = model_axes(spec)
    requested_sizes = {option_name: getattr(layout_request, option_name) or 1 for option_name in GROUP_SIZES}
    if layout_request.fsdp is not None:
        requested_sizes["dp"] = layout_request.fsdp * (layout_request.hsdp_replicas or 1)

    def can_divide_axes(tp: int) -> bool:
        rank_axes = RankAxes(layout := Layout(tp=tp), layout.coordinates(0))
        try:
            for axis in axes:
                if axis.name != "expert_ffn":
                    rank_axes.axis_on_rank(axis)
        except InputError:
            return False
        return True

    expert_sizes = divisors(expert_count) if expert_count else [1]
    ep_sizes = (
        [1] if layout_request.ep is None or not expert_count else _nearest_sizes(requested_sizes["ep"], expert_sizes)
    )
    tp_sizes_for_ep = [requested_sizes["ep"], 1] if layout_request.ep is not None and layout_request.tp is None else []
    tensor_parallel_sizes = filter(can_divide_axes, _tensor_parallel_sizes(axes, requested_sizes["tp"]))
    tp_sizes = _nearest_sizes(requested_sizes["tp"], tensor_parallel_sizes, *filter(can_divide_axes, tp_sizes_for_ep))
    stage_counts = range(1, min(layer_count, LARGEST_SIZE_FACTOR * requested_sizes["pp"]) + 1)
    pp_sizes = _nearest_sizes(
        requested_sizes["pp"], stage_counts, *_nearest_sizes(requested_sizes["pp"], divisors(layer_count))
    )
    chunk_counts = range(1, min(layer_count, LARGEST_SIZE_FACTOR * requested_sizes["vpp"]) + 1)
    vpp_sizes = [1] if layout_request.vpp is None else _nearest_sizes(requested_sizes["vpp"], chunk_counts, 1)
    for size_choice in product(tp_sizes, pp_sizes, vpp_sizes, ep_sizes):
        group_sizes: dict[str, Any] = dict(
            zip(("tp", "pp", "vpp", "ep"), size_choice, strict=True), cp=requested_sizes["cp"]
        )
        if group_sizes["pp"] * group_sizes["vpp"] > layer_count or (group_sizes["vpp"] > 1 and group_sizes["pp"] == 1):
            continue
        for etp in (
            {layout_request.etp or group_sizes["tp"], 1} if group_sizes["ep"] > 1 or layout_request.etp else {None}
        ):
            for dp in _replica_counts(layout_request, requested_sizes["dp"], group_sizes, etp or group_sizes["tp"]):
                nearby_sizes = group_sizes | {"dp": dp, "etp": etp}
                layout = _layout_of_sizes(layout_request, layer_count, requested_sizes, nearby_sizes)
                if layout is not None:
                    yield _layout_distance(layout_request, requested_sizes, nearby_sizes, layout), layout


def _nearest_sizes(requested_size: int, possible_sizes: Iterable[int], *added_sizes: int) -> list[int]:
    """Returns the `SIZES_TO_TRY` possible group sizes that are nearest to a requested size, plus `added_sizes`."""
    return sorted(
        {
            *sorted(possible_sizes, key=lambda size: (abs(log2(size / requested_size)), size))[:SIZES_TO_TRY],
            *added_sizes,
        }
    )


def _tensor_parallel_sizes(axes: Sequence[Axis], requested_size: int) -> Iterable[int]:
    """Returns tensor-parallel sizes near `requested_size` that may divide the axes."""
    axis_lengths = [
        axis.size for axis in axes if axis.name in TENSOR_PARALLEL_AXES - UNEVEN_AXES - COPIED_AXES and axis.size != 1
    ]
    common_divisor = gcd(*(axis_length for axis_length in axis_lengths if isinstance(axis_length, int)))
    return (
        divisors(common_divisor, LARGEST_SIZE_FACTOR * requested_size)
        if common_divisor
        else range(max(1, requested_size - SIZES_TO_TRY), requested_size + SIZES_TO_TRY + 1)
    )


def _replica_counts(layout_request: LayoutRequest, dp: int, group_sizes: dict[str, Any], etp: int) -> set[int]:
    """Returns the numbers of replicas to try for a layout.

    With a number of devices: as many replicas as fit. Otherwise: `dp`, and its neighbours that experts divide.
    """
    replica_devices = group_sizes["tp"] * group_sizes["pp"] * group_sizes["cp"]
    if layout_request.devices is not None:
        replica_count = layout_request.devices // replica_devices
        return (
            {max(1, replica_count)}
            if layout_request.devices % replica_devices == 0
            else {max(1, replica_count), replica_count + 1}
        )
    least_replica_count = group_sizes["ep"] * etp // gcd(group_sizes["ep"] * etp, group_sizes["tp"] * group_sizes["cp"])
    return {
        dp,
        -(-dp // least_replica_count) * least_replica_count,
        max(1, dp // least_replica_count) * least_replica_count,
    }


def _layout_of_sizes(
    layout_request: LayoutRequest, layer_count: int, requested_sizes: dict[str, int], group_sizes: dict[str, Any]
) -> Layout | None:
    """Returns the layout with the given group sizes and the requested options; None if impossible."""
    pp, vpp = group_sizes["pp"], group_sizes["vpp"]
    stage_count = pp * vpp
    pp_layout = layout_request.pp_layout
    if pp_layout is None or len(pp_layout) != stage_count or sum(pp_layout) != layer_count:
        is_even = layer_count % stage_count == 0
        if not is_even and (pp, vpp) != (requested_sizes["pp"], requested_sizes["vpp"]):
            return None
        pp_layout = None if is_even else even_stage_sizes(layer_count, stage_count)
    layout_options: dict[str, Any] = {"hsdp_replicas": layout_request.hsdp_replicas or 1}
    for option_name in ("sequence_parallel", "cp_comm", "reshard", "prefetch"):
        if getattr(layout_request, option_name) is not None:
            layout_options[option_name] = getattr(layout_request, option_name)
    etp = None if group_sizes["etp"] == group_sizes["tp"] else group_sizes["etp"]
    try:
        return Layout(
            **group_sizes | {"etp": etp},
            **layout_options,
            pp_layout=pp_layout,
            schedule=_schedule_of_sizes(layout_request, pp, vpp),
            zero=3 if layout_request.fsdp is not None else layout_request.zero or 0,  # type: ignore[arg-type]
        )
    except InputError:
        return None


def _schedule_of_sizes(layout_request: LayoutRequest, pp: int, vpp: int) -> Schedule:
    """Returns the requested pipeline schedule if the sizes allow it, otherwise the interleaved schedule or 1F1B."""
    if vpp > 1:
        return "interleaved"
    schedule = layout_request.schedule or "1f1b"
    if schedule == "interleaved" or (schedule == "dualpipe" and pp % 2):
        return "1f1b"
    return schedule


def _layout_distance(
    layout_request: LayoutRequest, requested_sizes: dict[str, int], group_sizes: dict[str, Any], layout: Layout
) -> float:
    """Returns a layout's distance from the requested layout: a weighted sum over the group sizes."""
    layout_distance = (
        UNEVEN_STAGES_DISTANCE if layout.pp_layout is not None and layout.pp_layout != layout_request.pp_layout else 0.0
    )
    for option_name in ("tp", "pp", "dp", "ep", "vpp"):
        is_requested = getattr(layout_request, option_name) is not None or (
            option_name == "dp" and layout_request.fsdp is not None
        )
        if option_name != "dp" or layout_request.devices is None:
            layout_distance += (REQUESTED_SIZE_WEIGHT if is_requested else 1.0) * abs(
                log2(group_sizes[option_name] / requested_sizes[option_name])
            )
    if layout_request.etp is not None:
        layout_distance += REQUESTED_SIZE_WEIGHT * abs(log2(layout.expert_tp / layout_request.etp))
    elif layout.expert_tp != layout.tp:
        layout_distance += UNEVEN_STAGES_DISTANCE
    if layout_request.devices is not None:
        layout_distance += REQUESTED_SIZE_WEIGHT * abs(log2(layout.world_size / layout_request.devices))
    return layout_distance


def _divides_sequence(layout: Layout, seq: int | None) -> bool:
    """Whether the ranks divide a sequence of `seq` tokens evenly."""
    sequence_ranks = layout.cp * (layout.tp if layout.sequence_parallel else 1)
    return seq is None or (seq % sequence_ranks == 0 and seq % sequence_multiple(layout.cp) == 0)


def _is_possible_layout(spec: ModelSpec, layout: Layout, layer_count: int) -> bool:
    """Whether every pipeline stage of the layout has a program."""
    try:
        layers_of_stages(layout, layer_count)
        for stage_index in {0, layout.pp - 1}:
            rank_model(spec, layout, layout.rank(pp=stage_index)).program()
    except InputError:
        return False
    return True
