"""The report of `llmcalc plan`: the layouts that fit, best first, and the reasons against others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import units
from ..frameworks.nccl import is_counted
from ..frameworks.ranks import attention_of
from ..sources.preset import Preset
from ..studies.layout_candidates import ENOUGH_HEADROOM, Candidate, position_of_layout, ties_with_previous
from ..studies.plan import FEWER_LAYOUTS, UNTRIED, LayoutPlan, RankedLayouts
from ..studies.step_size import DEVICE_TOKENS, STEP_TOKENS, usual_step_tokens
from ..timing.time_ranges import TIE, TimeRange
from .document import Column, DisplayedValue, Report, Row, Table, displayed_text, row, without_repetitions
from .memory_notes import run_text
from .notes import large_step_notes, plural, too_long_notes, warnings_of_notes
from .rank_texts import candidate_cell, shared_layout_words
from .summary import model_data
from .time_estimate import (
    duration_text,
    other_exchange_notes,
    range_ends_text,
    range_text,
    test_errors_text,
    unpriced_notes,
)

LAYOUT_COLUMNS = (
    Column("layout", "layout", justify="left", may_wrap=True),
    Column("micro_batches", "micro-batches", units.exact_text),
    Column("device_bytes", "required", units.GIB.write),
    Column("headroom_bytes", "headroom", units.GIB.write),
    Column("communication_bytes", "sent", units.GIB.write),
    Column("bubble", "bubble", units.percent),
)

TIMED_COLUMNS = (
    *LAYOUT_COLUMNS[:2],
    Column("seconds", "step", displayed_text),
    Column("range", "range", justify="left"),
    Column("tie", "tie"),
    LAYOUT_COLUMNS[2],
    Column("headroom_bytes", "free", units.GIB.write),
)

REFUSED_COLUMNS = (
    Column("reason", "why not", justify="left", may_wrap=True),
    Column("count", "layouts", units.exact_text),
)


def report(
    preset: Preset, layout_plan: LayoutPlan, nearest_text: str = "", requested_sizes: Mapping[str, int] | None = None
) -> Report:
    """Returns the report: the best layouts, and the number of refused layouts per reason.

    nearest_text: the nearest possible layouts if no layout is possible; default empty.
    requested_sizes: sizes of a layout whose place in the order is shown; default none.
    """
    plan, run_memory = layout_plan.ranked_layouts, layout_plan.memory
    capacity_text = f"{units.GIB.write(layout_plan.hardware.capacity_bytes)} {units.GIB.name}"
    accelerators_text = f"{plural(layout_plan.devices, 'device')} with {capacity_text} each"
    run_title = f"{run_text(run_memory.states)}, {plural(layout_plan.global_batch, 'sequence')} a step"
    shared_words = shared_layout_words([candidate for _, candidate in layout_plan.rows_of_frameworks])
    run_description = f"{run_title}, on {accelerators_text} ({layout_plan.hardware.title}); sizes in {units.GIB.name}"
    run_description += f"; all layouts: {', '.join(shared_words)}" if shared_words else ""
    warnings = too_long_notes(run_memory.spec, run_memory.states.workload)
    table_rows = [
        _layout_row(
            framework_plan,
            layout_candidate,
            is_tie,
            framework_plan.framework.title if layout_plan.other_plans else "",
            shared_words,
        )
        for framework_plan, layout_candidate, is_tie in _rows_with_ties(layout_plan)
    ]
    if not table_rows and plan.nearest_candidate is not None:
        table_rows = [_layout_row(layout_plan, plan.nearest_candidate)]
    layout_position = None if requested_sizes is None else _order_position(layout_plan, requested_sizes)
    notes = without_repetitions(
        [
            *_comparison_notes(layout_plan),
            *notes_on_other_accelerators(layout_plan),
            *large_step_notes(layout_plan.global_batch, int(run_memory.states.workload.seq)),
            *warnings,
            nearest_text,
            *_nccl_headroom_notes(layout_plan),
            *_exchange_notes(layout_plan),
            *unpriced_notes([] if layout_plan.training_times is None else layout_plan.training_times.unpriced_options),
            *([] if layout_position is None else [_order_position_text(layout_position)]),
            f"assumed: {layout_plan.assumed_batch}, {layout_plan.step_tokens:,} tokens a step"
            if layout_plan.assumed_batch
            else "",
            f"assumed: a micro-batch of each device, {layout_plan.step_tokens:,} tokens a step; pre-training, and "
            f"cost, take about {_usual_step_tokens_text(layout_plan.devices)}: "
            f"--global-batch {layout_plan.batch_of_cost}"
            if layout_plan.batch_of_cost
            else "",
            *_plan_notes(layout_plan),
        ]
    )
    title = preset.display
    table_columns = LAYOUT_COLUMNS if layout_plan.training_times is None else TIMED_COLUMNS
    tables = [
        Table(title, table_columns, table_rows, run_description, notes, _answer_text(layout_plan), name="feasible")
    ]
    if plan.refusal_counts:
        reason_rows = [
            row(reason, layout_count)
            for reason, layout_count in sorted(plan.refusal_counts.items(), key=lambda item: -item[1])
        ]
        tables.append(
            Table(
                "Layouts that are left out",
                REFUSED_COLUMNS,
                reason_rows,
                name="refused",
                is_optional=bool(plan.feasible),
            )
        )
    json_document = _plan_data(preset, layout_plan) | ({} if layout_position is None else {"where": layout_position})
    lazy_fields = {"unreplayed": lambda: [unreplayed_data(layout_candidate) for layout_candidate in plan.unreplayed]}
    report = Report(
        json_document,
        tables,
        warnings=warnings_of_notes(preset, warnings),
        deferred_values=lazy_fields,
        counts_note_lines=True,
    )
    return report.with_target(preset.target)


def _rows_with_ties(layout_plan: LayoutPlan) -> list[tuple[LayoutPlan, Candidate, bool]]:
    """Returns each fitting layout with its framework's plan, and whether its time ties with another layout's."""
    framework_rows = layout_plan.rows_of_frameworks
    row_tie_flags = ties_with_previous([layout_candidate for _, layout_candidate in framework_rows])
    return [(plan, candidate, is_tie) for (plan, candidate), is_tie in zip(framework_rows, row_tie_flags, strict=True)]


def _order_position(layout_plan: LayoutPlan, requested_sizes: Mapping[str, int]) -> dict[str, Any]:
    """Returns a layout's position among the sorted layouts that may fit; None if it is not listed."""
    layouts_in_order = layout_plan.order
    return {
        "layout": dict(requested_sizes),
        "place": position_of_layout(layouts_in_order, requested_sizes),
        "of": len(layouts_in_order),
    }


def _order_position_text(layout_position: dict[str, Any]) -> str:
    layout = " ".join(f"{degree_name}{degree}" for degree_name, degree in layout_position["layout"].items())
    if layout_position["place"] is None:
        return f"{layout}: is not among the {layout_position['of']:,} layouts whose tensors may fit"
    return f"{layout}: place {layout_position['place']:,} of {layout_position['of']:,}"


def _answer_text(layout_plan: LayoutPlan) -> str:
    """Writes how many layouts fit, or under which frameworks, and the seconds of the fastest layout."""
    framework_rows = sorted(layout_plan.rows_of_frameworks, key=lambda row: row[1].seconds or 0.0)
    fastest_plan, fastest_layout = next(iter(framework_rows), (layout_plan, None))
    fastest_time = None if fastest_layout is None else fastest_plan.step_time_range(fastest_layout)
    time_text = "" if fastest_time is None else f"; the fastest takes {range_text(fastest_time)} a step"
    if layout_plan.other_plans:
        framework_titles = [plan.framework.title for plan in (layout_plan, *layout_plan.other_plans)]
        return f"it fits under {', '.join(framework_titles[:-1])} and {framework_titles[-1]}{time_text}"
    for compared_plan in layout_plan.compared_plans:
        compared_layout = compared_plan.first_row[1]
        compared_time = None if compared_layout is None else compared_plan.step_time_range(compared_layout)
        if compared_time is not None and fastest_time is not None and compared_time.estimate < fastest_time.estimate:
            time_text += f"; {compared_plan.framework.title}'s {duration_text(float(compared_time.estimate))}"
    framework_text = f" under {layout_plan.framework.title}"
    with_expandable_text = "" if layout_plan.expandable_bytes is None else f", but one does with {EXPANDABLE}"
    return _fitting_layouts_text(layout_plan.ranked_layouts) + framework_text + with_expandable_text + time_text


def _comparison_notes(layout_plan: LayoutPlan) -> list[str]:
    """Returns a note for each framework whose layouts are not listed: the time of its fastest, or that none fits."""
    notes = []
    for compared_plan in layout_plan.compared_plans:
        framework_text = f"{compared_plan.framework.title} (--framework {compared_plan.framework.name})"
        compared_candidate = compared_plan.first_row[1]
        if compared_candidate is None:
            fit_text = "none found fits" if compared_plan.ranked_layouts.ended_early else "none fits"
            notes.append(f"not listed: layouts of {framework_text}, of which {fit_text}")
            continue
        compared_time = compared_plan.step_time_range(compared_candidate)
        time_text = "fits" if compared_time is None else f"takes {range_text(compared_time)} a step"
        notes.append(
            f"not listed: layouts of {framework_text}; {'their fastest' if compared_time else 'one'} {time_text}, "
            f"{candidate_cell(compared_candidate.layout, compared_candidate.recompute, ())}"
        )
    return notes


def _fitting_layouts_text(plan: RankedLayouts) -> str:
    fits_verb = "fits" if len(plan.feasible) == 1 else "fit"
    if not plan.unreplayed and UNTRIED in plan.refusal_counts:
        tried_text = plural(plan.tried_count - plan.refusal_counts[UNTRIED], "tried layout")
        return f"{len(plan.feasible):,} of {tried_text} {fits_verb}"
    if not plan.unreplayed and not plan.feasible:
        return "no layout fits"
    if not plan.unreplayed:
        return f"{len(plan.feasible):,} of {plural(plan.tried_count, 'layout')} {fits_verb}"
    return f"{len(plan.feasible) or 'none'} of {plural(plan.replay_count, 'layout')} counted in full {fits_verb}"


def _usual_step_tokens_text(devices: int) -> str:
    """Writes the usual number of tokens of a training step: `4M`, or `1,024 of each device` on many devices."""
    return "4M" if usual_step_tokens(devices) == STEP_TOKENS else f"{DEVICE_TOKENS:,} of each device"


def _layout_row(
    layout_plan: LayoutPlan,
    candidate: Candidate,
    is_tie: bool = False,
    framework_title: str = "",
    shared_words: Sequence[str] = (),
) -> Row:
    framework_text = f" ({framework_title})" if framework_title else ""
    row_cells = [
        candidate_cell(candidate.layout, candidate.recompute, shared_words) + framework_text,
        candidate.micro_batches,
    ]
    if layout_plan.training_times is None:
        row_cells += [candidate.device_bytes, candidate.headroom, candidate.communication_bytes, candidate.bubble]
        return Row(row_cells)
    seconds_range = layout_plan.step_time_range(candidate)
    if seconds_range is None:
        return row(*row_cells, None, None, "", candidate.device_bytes, candidate.headroom)
    seconds_cell = DisplayedValue(candidate.seconds, duration_text(candidate.seconds or 0.0, digit_count=3))
    seconds_text = range_ends_text(seconds_range)
    return row(
        *row_cells, seconds_cell, seconds_text, "=" if is_tie else "", candidate.device_bytes, candidate.headroom
    )


def _order_notes(layout_plan: LayoutPlan) -> list[str]:
    """Returns notes on the order of layouts and the order's uncertainty."""
    if layout_plan.training_times is None:
        untimed_text = f"; no time: {layout_plan.untimed_reason}" if layout_plan.untimed_reason else ""
        return [
            f"order: the sum of a layout's positions by headroom, by bytes sent and by bubble; headroom beyond "
            f"{ENOUGH_HEADROOM:.0%} of the memory is no merit{untimed_text}"
        ]
    fastest_plan, fastest_candidate = layout_plan.first_row
    first_time = None if fastest_candidate is None else fastest_plan.step_time_range(fastest_candidate)
    software_stack = (
        fastest_plan.training_times.stack
        if fastest_plan.training_times is not None
        else layout_plan.training_times.stack
    )
    timed_rows = _rows_with_ties(layout_plan)
    tie_text = (
        f"=: within {TIE * 100:g} % of the fastest of its tie, where the smallest cp and fewest kinds of parallelism "
        "come first; "
        if any(is_tie for _, _, is_tie in timed_rows)
        else ""
    )
    order_text = "ranges move together, so the order is surer than the seconds: measure the first three"
    return [
        *([] if first_time is None else [test_errors_text(first_time, software_stack.title)]),
        *([f"{tie_text}{order_text}"] if len(timed_rows) > 1 else []),
    ]


EXPANDABLE = "--allocator expandable"
"""The option with which torch's allocator leaves few unused bytes between tensors."""

LITTLE_HEADROOM = 0.02
"""Share of a device's memory that the buffers of NCCL may take; llmcalc counts them for few layouts."""


def _nccl_headroom_notes(layout_plan: LayoutPlan) -> list[str]:
    """Returns a note if the first layout leaves too little memory for NCCL's buffers, and these are not counted."""
    first_plan, first_layout = layout_plan.first_row
    if (
        first_layout is None
        or first_layout.headroom > LITTLE_HEADROOM * first_layout.capacity
        or is_counted(first_layout.layout, first_plan.framework, first_plan.memory.cuda_runtime)
    ):
        return []
    return [
        f"the first layout leaves {units.GIB.write(first_layout.headroom)} {units.GIB.name}, and NCCL's buffers, which "
        "are not counted, come on top: it may run out of memory"
    ]


def _exchange_notes(layout_plan: LayoutPlan) -> list[str]:
    """Returns a note if the first layout takes another time by the framework's other exchange of experts' tokens."""
    first_plan, first_candidate = layout_plan.first_row
    if (
        first_candidate is None
        or first_candidate.seconds is None
        or first_plan.training_times is None
        or first_candidate.layout.ep == 1
    ):
        return []
    training_times = first_plan.training_times.with_memory(
        first_plan.estimates.with_recompute(first_candidate.recompute).memory
    )
    return other_exchange_notes(
        training_times.stack,
        first_candidate.seconds,
        lambda time_stack: training_times.seconds_on(time_stack, first_candidate.layout, first_candidate.micro_batches),
        "the first layout takes ",
    )


def notes_on_other_accelerators(layout_plan: LayoutPlan) -> list[str]:
    """Returns notes on frameworks that are not tried, and on one that does not run on the plan's accelerator."""
    hardware, untried_notes = layout_plan.hardware, list(layout_plan.untried_frameworks)
    if hardware is None or (hardware.is_gpu and hardware.vendor != "Apple"):
        return untried_notes
    return [
        *untried_notes,
        f"{layout_plan.framework.title} runs on GPUs of NVIDIA and AMD: for {hardware.title}, which it does not "
        "support, these are the bytes of its kernels there",
    ]


def _plan_notes(layout_plan: LayoutPlan) -> list[str]:
    framework_text = "the framework in its row" if layout_plan.other_plans else layout_plan.framework.title
    notes = [
        *_order_notes(layout_plan),
        f"kernels and buffers of {framework_text}; required, and what is free (headroom): of the rank that needs "
        "most; sent: by one rank in a step",
    ]
    if attention_of(layout_plan.memory, layout_plan.framework) == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if layout_plan.recomputed is not None:
        recomputed_fit_text = f"{layout_plan.recomputed:,} of {layout_plan.ranked_layouts.tried_count:,} may fit"
        notes.insert(0, f"with --recompute full {recomputed_fit_text}: their tensors do")
    if layout_plan.ranked_layouts.unreplayed:
        layout_count = len(layout_plan.ranked_layouts.unreplayed)
        upper_bound = max(layout_candidate.upper_bound for layout_candidate in layout_plan.ranked_layouts.unreplayed)
        more_rows_hint = f"--rows {layout_plan.rows + layout_count} counts more"
        if layout_plan.ranked_layouts.ended_early:
            more_rows_hint = f"the search ended early: {FEWER_LAYOUTS}"
        notes.insert(
            0,
            f"{layout_count:,} more of {plural(layout_plan.ranked_layouts.tried_count, 'layout')} may fit: their "
            "tensors do, and unused blocks of the allocator come on top (at most "
            f"{units.GIB.write(upper_bound)} {units.GIB.name} in all); {more_rows_hint}",
        )
    if not layout_plan.ranked_layouts.tried_count:
        notes.insert(0, f"the given group sizes do not divide {plural(layout_plan.devices, 'device')}")
    if not layout_plan.ranked_layouts.feasible and layout_plan.ranked_layouts.nearest_candidate is not None:
        notes.append("shown: the layout that requires least, of those that do not fit")
        if layout_plan.expandable_bytes is not None:
            notes.insert(
                0,
                f"with {EXPANDABLE}, which is PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, it requires "
                f"{units.GIB.write(layout_plan.expandable_bytes)} {units.GIB.name} and fits",
            )
    return notes


def candidate_data(
    layout_candidate: Candidate, seconds: TimeRange | None = None, is_tie: bool = False
) -> dict[str, Any]:
    """Returns a layout as plain data. Bytes are exact integers.

    is_tie: whether its time equals that of the layouts before it.
    """
    time_data = {} if seconds is None else {"seconds": seconds.amount.as_data(), "tie": is_tie}
    return time_data | {
        "layout": layout_candidate.layout.data(),
        "options": layout_candidate.options,
        "num_microbatches": layout_candidate.micro_batches,
        "device_bytes": layout_candidate.device_bytes,
        "headroom_bytes": layout_candidate.headroom,
        "communication_bytes": layout_candidate.communication_bytes,
        "bubble": layout_candidate.bubble,
        "replayed": layout_candidate.is_replayed,
    }


def unreplayed_data(layout_candidate: Candidate) -> dict[str, Any]:
    """Returns a layout whose memory was not replayed as plain data. Bytes are exact integers."""
    return {
        "layout": layout_candidate.layout.data(),
        "options": layout_candidate.options,
        "num_microbatches": layout_candidate.micro_batches,
        "tensor_bytes": layout_candidate.device_bytes,
        "upper_bound_bytes": layout_candidate.upper_bound,
        "communication_bytes": layout_candidate.communication_bytes,
        "bubble": layout_candidate.bubble,
    }


def _plan_data(preset: Preset, layout_plan: LayoutPlan) -> dict[str, Any]:
    plan = layout_plan.ranked_layouts
    return {
        "model": model_data(preset),
        "hardware": layout_plan.hardware.name,
        "devices": layout_plan.devices,
        "framework": layout_plan.framework.name,
        "global_batch": layout_plan.global_batch,
        "tried": sum(
            framework_plan.ranked_layouts.tried_count for framework_plan in (layout_plan, *layout_plan.other_plans)
        ),
        "by": "memory" if layout_plan.training_times is None else "time",
        "feasible": [
            candidate_data(layout_candidate, framework_plan.step_time_range(layout_candidate), is_tie)
            | ({"framework": framework_plan.framework.name} if layout_plan.other_plans else {})
            for framework_plan, layout_candidate, is_tie in _rows_with_ties(layout_plan)
        ],
        "other_frameworks": [
            {"framework": compared_plan.framework.name}
            | (
                {"fits": False}
                if candidate is None
                else {"fits": True} | candidate_data(candidate, compared_plan.step_time_range(candidate))
            )
            for compared_plan in layout_plan.compared_plans
            for candidate in (compared_plan.first_row[1],)
        ],
        "unreplayed": [],
        "feasible_with_recompute": layout_plan.recomputed,
        "refused": plan.refusal_counts,
        "nearest": None if plan.nearest_candidate is None else candidate_data(plan.nearest_candidate),
        "nearest_expandable_bytes": layout_plan.expandable_bytes,
    }
