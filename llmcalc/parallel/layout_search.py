"""Enumerates the parallel layouts of a number of devices, and counts the refused layouts by reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

from ..errors import InputError
from ..flow.axis import Axis
from ..model import ModelSpec
from .divisors import divisors
from .layout import ImpossibleLayout, Layout, Zero, layers_of_stages
from .layout_request import NO_LAYOUT_OPTIONS, LayoutRequest
from .layout_rules import LayoutRules
from .rank_program import (
    RankAxes,
    check_experts,
    divides_state_space_groups,
    model_axes,
    no_pipeline_reason,
)
from .schedules import check_micro_batches

CHUNK_COUNTS = (1, 2, 4)
"""Numbers of model chunks per pipeline rank that a search tries."""

LONG_SEQUENCE_TOKENS = 8192
"""Length of a sequence in tokens from which context parallelism is tried."""

SHORTEST_SEQUENCE_PART = 1024
"""Smallest part of a sequence per rank, in tokens, unless --cp is given."""

(
    UNDIVIDED_HEADS,
    UNDIVIDED_WIDTHS,
    TOO_MANY_STAGES,
    UNDIVIDED_BATCH,
    UNDIVIDED_EXPERTS,
    UNEVEN_ROUNDS,
    UNDIVIDED_SEQUENCE,
    NO_REPLICAS,
) = (
    "--tp does not divide the heads",
    "--tp does not divide a width",
    "more stages than layers",
    "--dp does not divide the global batch",
    "--ep does not divide the experts",
    "the schedule does not take the micro-batches",
    "twice --cp does not divide the tokens of a sequence",
    "one replica, whose states --zero does not divide",
)
"""Reasons why a layout is refused, in the words of messages."""


@dataclass
class LayoutSearch:
    """The results of a layout search: the possible layouts, and the number of refused layouts by reason.

    possible_layouts: the layouts that the model can have, each with its micro-batches per step.
    refusal_counts: reason → number of layouts that were refused for it.
    errors_by_reason: reason → the error of `Layout` behind it.
    """

    possible_layouts: list[tuple[Layout, int]] = field(default_factory=list)
    refusal_counts: Counter[str] = field(default_factory=Counter)
    errors_by_reason: dict[str, InputError] = field(default_factory=dict)

    def count_refusal(self, refusal_error: InputError) -> None:
        """Counts a layout that the framework refuses, under the reason: the error text before the semicolon."""
        refusal_reason = str(refusal_error).partition(";")[0]
        self.refusal_counts[refusal_reason] += 1
        self.errors_by_reason[refusal_reason] = refusal_error

    @property
    def tried_count(self) -> int:
        """Number of layouts that the search tried."""
        return len(self.possible_layouts) + self.refusal_counts.total()


def search_layouts(
    spec: ModelSpec,
    devices: int,
    global_batch: int,
    micro_batch: int,
    seq: int,
    layout_rules: LayoutRules,
    layout_request: LayoutRequest = NO_LAYOUT_OPTIONS,
    devices_per_node: int = 8,
    tries_variants: bool = True,
) -> LayoutSearch:
    """Tries every layout of a number of devices that a framework supports.

    global_batch: sequences per step.
    micro_batch: sequences per micro-batch.
    layout_rules: the framework's rules.
    layout_request: options that every layout must have.
    devices_per_node: devices of a node, which a tensor group does not exceed.
    tries_variants: whether a layout of which all sizes are typed is also tried with options that were not, such as
        sequence parallelism; default true. Otherwise it is tried as it was typed, if the model can have it so.
    Raises `InputError` for options that no layout of the search can have.
    """
    _check_request(layout_rules, layout_request)
    layer_count = spec.layer_count
    expert_count, pipeline_refusal = spec.routed_experts, no_pipeline_reason(spec)
    axes = model_axes(spec)
    if (
        not tries_variants
        and (typed_layout := _typed_layout(layout_rules, layout_request, trains_experts=expert_count > 0)) is not None
    ):
        layout_search = LayoutSearch()
        _try_layout(layout_search, axes, layer_count, typed_layout, global_batch, micro_batch, layout_rules)
        if layout_search.possible_layouts:
            return layout_search
    check_experts(spec, layout_request.ep or 1)
    tp_sizes = _sizes_to_try(layout_request.tp, devices, devices_per_node)
    cp_sizes = _sizes_to_try(
        layout_request.cp,
        math.gcd(devices, seq // 2) if seq % 2 == 0 and seq >= LONG_SEQUENCE_TOKENS else 1,
        seq // SHORTEST_SEQUENCE_PART,
    )

    def search_stages(stage_counts: Iterable[int]) -> LayoutSearch:
        layout_search = LayoutSearch()
        for tp, cp, pp in product(tp_sizes, cp_sizes, stage_counts):
            if devices % (tp * cp * pp):
                continue
            if seq % sequence_multiple(cp):
                layout_search.refusal_counts[UNDIVIDED_SEQUENCE] += 1
                continue
            dp = devices // (tp * cp * pp)
            for vpp, ep in product(CHUNK_COUNTS if pp > 1 else (1,), _expert_group_sizes(expert_count, tp * cp * dp)):
                group_sizes = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "vpp": vpp, "ep": ep}
                if not _matches_request(layout_request, group_sizes) or not _follows_layout_rules(
                    layout_rules, group_sizes
                ):
                    continue
                if pipeline_refusal and pp > 1:
                    layout_search.refusal_counts[pipeline_refusal] += 1
                    continue
                if layout_request.zero and dp * cp == 1 < devices:
                    layout_search.refusal_counts[NO_REPLICAS] += 1
                    continue
                try:
                    layout = _layout_of_sizes(
                        layout_rules, group_sizes, bool(expert_count), layer_count, layout_request
                    )
                except InputError as error:
                    layout_search.count_refusal(error)
                    continue
                for layout_variant in _zero_stage_variants(layout, layout_rules, layout_request):
                    _try_layout(
                        layout_search, axes, layer_count, layout_variant, global_batch, micro_batch, layout_rules
                    )
        return layout_search

    if layout_rules.pipelines_on_request and not layout_request.has_pipeline_options:
        search_without_pipelines = search_stages([1])
        if search_without_pipelines.possible_layouts:
            return search_without_pipelines
    return search_stages(_sizes_to_try(layout_request.pp, devices, layer_count))


def _typed_layout(layout_rules: LayoutRules, layout_request: LayoutRequest, *, trains_experts: bool) -> Layout | None:
    """Returns the layout of a request that states all sizes; None if a size is missing or the layout impossible."""
    if not layout_request.has_all_sizes:
        return None
    try:
        return layout_rules.layout_of(layout_request, trains_experts=trains_experts)
    except InputError:
        return None


def _zero_stage_variants(
    layout: Layout | None, layout_rules: LayoutRules, layout_request: LayoutRequest
) -> Iterator[Layout | None]:
    """Yields the layout, and copies with the framework's other ZeRO stages if the user chose no ZeRO option."""
    yield layout
    zero_option_names = ("zero", "fsdp", "hsdp_replicas", "zero_group", "reshard", "prefetch")
    if (
        layout is None
        or not layout.zero
        or any(getattr(layout_request, option_name) is not None for option_name in zero_option_names)
    ):
        return
    for zero_stage in layout_rules.other_zero_stages:
        yield replace(layout, zero=zero_stage)


def check_layer_count(spec: ModelSpec, most_stages: int) -> None:
    """Raises `InputError` for a model with too many layers for a layout search."""
    layer_count = spec.layer_count
    if layer_count > most_stages:
        raise InputError(
            f"{layer_count:,} layers are too many for a search of layouts; expected at most {most_stages:,} "
            "(llmcalc memory answers for one layout, such as --tp 8)"
        )


def _sizes_to_try(fixed_size: int | None, size_multiple: int, maximum_size: int | None = None) -> list[int]:
    """Returns the group sizes to try: the requested size, or the divisors of `size_multiple` up to a maximum."""
    return (
        divisors(size_multiple, None if maximum_size is None else max(1, maximum_size))
        if fixed_size is None
        else [fixed_size]
    )


def sequence_multiple(cp: int) -> int:
    """Returns the number that must divide sequence lengths: 2 · cp, as each context-parallel rank takes two chunks."""
    return 2 * cp if cp > 1 else 1


def _check_request(layout_rules: LayoutRules, layout_request: LayoutRequest) -> None:
    """Raises `InputError` for options that no layout of the search can satisfy.

    These are groups that the framework's rules exclude, and chunks that contradict other options.
    """
    layout_rules.check_zero_stage(layout_request)
    for option_name in layout_rules.untried_size_names:
        if (parallel_size := getattr(layout_request, option_name)) not in (None, 1):
            raise InputError(
                f"--{option_name} {parallel_size}: the memory of such ranks is not modelled for --framework "
                f"{layout_rules.name}; expected 1, or llmcalc time, which needs no memory"
            )
    if layout_request.schedule not in (None, *REPLAYED_SCHEDULES):
        raise InputError(
            f"--schedule {layout_request.schedule}: no replay runs it with --framework {layout_rules.name}; "
            f"expected {' or '.join(REPLAYED_SCHEDULES)}"
        )
    is_interleaved = layout_request.schedule == "interleaved"
    if is_interleaved and "vpp" in layout_rules.untried_size_names:
        raise InputError(f"--schedule interleaved: is not tried for --framework {layout_rules.name}; expected 1f1b")
    if layout_request.pp == 1 and (is_interleaved or (layout_request.vpp or 1) > 1):
        option_text = "--schedule interleaved" if is_interleaved else f"--vpp {layout_request.vpp}"
        raise InputError(f"{option_text}: chunks of a rank need a pipeline; expected --pp of at least 2")
    if (
        layout_request.schedule is not None
        and layout_request.vpp is not None
        and is_interleaved != (layout_request.vpp > 1)
    ):
        expected_option = "--vpp of at least 2" if is_interleaved else "--vpp 1"
        raise InputError(
            f"--schedule {layout_request.schedule}: has another number of chunks a rank; expected {expected_option}"
        )


def check_plannable_layout(layout: Layout, layout_rules: LayoutRules, global_batch: int, micro_batch: int) -> None:
    """Raises `ImpossibleLayout` if a search would not try the layout, or cannot divide the global batch over it."""
    group_sizes = {option_name: getattr(layout, option_name) for option_name in layout_rules.untried_size_names}
    if not _follows_layout_rules(layout_rules, group_sizes):
        raise ImpossibleLayout(f"--framework {layout_rules.name}: {layout.options()} is not tried")
    micro_batches, remainder = divmod(global_batch, layout.dp * micro_batch)
    if remainder:
        raise ImpossibleLayout(UNDIVIDED_BATCH)
    if not _has_enough_micro_batches(layout, layout_rules, micro_batches):
        raise ImpossibleLayout(UNEVEN_ROUNDS)


def _has_enough_micro_batches(layout: Layout, layout_rules: LayoutRules, micro_batches: int) -> bool:
    """Whether a framework's 1F1B schedule has enough micro-batches for the stages of a layout.

    Source: torch/distributed/pipelining/schedules.py, `PipelineScheduleSingle.__init__`.
    """
    return not layout_rules.needs_full_pipeline or layout.schedule != "1f1b" or micro_batches >= layout.pp


def divisible_batch(devices: int, global_batch: int, micro_batch: int) -> int:
    """Rounds the global batch up to a multiple of `devices` · `micro_batch`."""
    batch_multiple = devices * micro_batch
    return max(1, math.ceil(global_batch / batch_multiple)) * batch_multiple


def _matches_request(layout_request: LayoutRequest, group_sizes: dict[str, int]) -> bool:
    """Whether these group sizes agree with the requested options."""
    if layout_request.fsdp is not None and group_sizes["dp"] != layout_request.fsdp * (
        layout_request.hsdp_replicas or 1
    ):
        return False
    if layout_request.schedule is not None and (layout_request.schedule == "interleaved") != (group_sizes["vpp"] > 1):
        return False
    stage_sizes = layout_request.pp_layout
    if stage_sizes is not None and len(stage_sizes) != group_sizes["pp"] * group_sizes["vpp"]:
        return False
    return all(
        getattr(layout_request, size_name) in (None, group_size) for size_name, group_size in group_sizes.items()
    )


def _follows_layout_rules(layout_rules: LayoutRules, group_sizes: dict[str, int]) -> bool:
    """Whether every group size that the framework's search does not try is 1."""
    return all(group_sizes[option_name] == 1 for option_name in layout_rules.untried_size_names)


REPLAYED_SCHEDULES = ("1f1b", "interleaved")
"""The pipeline schedules that the frameworks' memory replays support."""

FIXED_OPTIONS = ("sequence_parallel", "etp", "cp_comm", "hsdp_replicas", "reshard", "prefetch", "schedule")
"""Layout options other than group sizes; a typed one applies to every layout of the search."""


def _layout_of_sizes(
    layout_rules: LayoutRules,
    group_sizes: dict[str, int],
    has_experts: bool,
    layer_count: int,
    layout_request: LayoutRequest,
) -> Layout | None:
    """Returns the layout of these group sizes; None if a stage has no layers."""
    stage_count = group_sizes["pp"] * group_sizes["vpp"]
    if stage_count > layer_count:
        return None
    has_replicas = group_sizes["dp"] * group_sizes["cp"] > 1
    zero_stage = (
        3
        if layout_request.fsdp is not None
        else layout_rules.default_zero_stage
        if layout_request.zero is None
        else layout_request.zero
    )
    layout = Layout(
        tp=group_sizes["tp"],
        cp=group_sizes["cp"],
        pp=group_sizes["pp"],
        dp=group_sizes["dp"],
        vpp=group_sizes["vpp"],
        ep=group_sizes["ep"],
        etp=1 if has_experts and layout_rules.keeps_experts_whole else None,
        pp_layout=layout_request.pp_layout
        or (None if layer_count % stage_count == 0 else even_stage_sizes(layer_count, stage_count)),
        sequence_parallel=group_sizes["tp"] > 1 and layout_rules.sequence_parallel,
        zero=cast(Zero, zero_stage) if has_replicas else 0,
        schedule="interleaved" if group_sizes["vpp"] > 1 else "1f1b",
    )
    layout_options = {
        option_name: option_value
        for option_name in FIXED_OPTIONS
        if (option_value := getattr(layout_request, option_name)) is not None
    }
    if layout_request.zero_group is not None:
        layout_options["hsdp_replicas"] = layout_request.count_zero_groups(layout.dp, layout.cp, layout.zero)
    if layout_rules.keeps_gathered_weights(layout.pp, layout.zero):
        layout_options.setdefault("reshard", False)
    if layout_options:
        layout = replace(layout, **layout_options)
    layers_of_stages(layout, layer_count)  # raises where they do not add up to the model's
    if layout_request.prefetch is not None or layout_request.reshard is not None:
        layout_request.check_zero_options(layout)
    return layout


def _try_layout(
    layout_search: LayoutSearch,
    axes: Iterable[Axis],
    layer_count: int,
    layout: Layout | None,
    global_batch: int,
    micro_batch: int,
    layout_rules: LayoutRules,
) -> None:
    """Adds a layout to the search's possible layouts, or counts it under the reason why it is impossible."""
    if layout is None:
        layout_search.refusal_counts[TOO_MANY_STAGES] += 1
        return
    micro_batches, remainder = divmod(global_batch, layout.dp * micro_batch)
    if remainder or not micro_batches:
        refusal_reason = UNDIVIDED_BATCH
    elif not divides_state_space_groups(axes, layout):
        refusal_reason = UNDIVIDED_WIDTHS
    else:
        refusal_reason = layout_refusal(axes, layout, layer_count, micro_batches)
    if not refusal_reason and not _has_enough_micro_batches(layout, layout_rules, micro_batches):
        refusal_reason = UNEVEN_ROUNDS
    if refusal_reason:
        layout_search.refusal_counts[refusal_reason] += 1
    else:
        layout_search.possible_layouts.append((layout, micro_batches))


def even_stage_sizes(layer_count: int, stage_count: int) -> tuple[int, ...]:
    """Returns the number of layers per stage, as even as possible; the middle stages get the remainder."""
    layers_per_stage, remainder = divmod(layer_count, stage_count)
    first_larger_stage_index = (stage_count - remainder) // 2
    return tuple(
        layers_per_stage + (first_larger_stage_index <= stage_index < first_larger_stage_index + remainder)
        for stage_index in range(stage_count)
    )


def layout_refusal(axes: Iterable[Axis], layout: Layout, layer_count: int, micro_batches: int) -> str:
    """Returns the reason why a model cannot have a layout; empty if it can."""
    try:
        layers_of_stages(layout, layer_count)
    except InputError:
        return TOO_MANY_STAGES
    rank_axes = RankAxes(layout, layout.coordinates(0))
    for axis in axes:
        try:
            rank_axes.axis_on_rank(axis)
        except InputError:
            return UNDIVIDED_HEADS if "heads" in axis.name else UNDIVIDED_WIDTHS
    try:
        check_micro_batches(layout, micro_batches)
    except InputError:
        return UNEVEN_ROUNDS
    return ""


def _expert_group_sizes(expert_count: int, rank_count: int) -> list[int]:
    """Returns the sizes of expert-parallel groups that divide the experts."""
    return divisors(math.gcd(expert_count, rank_count)) if expert_count else [1]
