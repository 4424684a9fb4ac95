"""The report of `llmcalc plan`: the layouts that fit, best first, and the reasons against others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import units
from ..frameworks.nccl import has_known_buffers
from ..frameworks.ranks import attention_implementation_of
from ..sources.preset import Preset
from ..studies.layout_candidates import ENOUGH_HEADROOM, Candidate, position_of_layout, ties_with_previous
from ..studies.layout_order import UNTRIED_REASON, RankedLayouts
from ..studies.plan import FEWER_LAYOUTS_ADVICE, LayoutPlan
from ..studies.step_size import LEAST_DEVICE_TOKENS, STEP_TOKENS, usual_step_tokens
from ..timing.time_ranges import TIE_SHARE, TimeRange
from .document import Column, DisplayedValue, Report, Row, Table, displayed_text, row, without_repetitions
from .memory_notes import run_text
from .notes import counted_noun, large_step_notes, too_long_notes, warnings_of_notes
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


def report(preset: Preset, plan: LayoutPlan, requested_sizes: Mapping[str, int] | None = None) -> Report:
    """Returns the report: the best layouts, and the number of refused layouts per reason.

    requested_sizes: sizes of a layout whose place in the order is shown; default none.
    """
    ranked_layouts, run_memory = plan.ranked_layouts, plan.memory
    capacity_text = f"{units.GIB.write(plan.hardware.capacity_bytes)} {units.GIB.name}"
    accelerators_text = f"{counted_noun(plan.devices, 'device')} with {capacity_text} each"
    run_title = f"{run_text(run_memory.states)}, {counted_noun(plan.global_batch, 'sequence')} a step"
    shared_words = shared_layout_words([candidate for _, candidate in plan.fitting_candidates_of_frameworks])
    run_description = f"{run_title}, on {accelerators_text} ({plan.hardware.title}); sizes in {units.GIB.name}"
    run_description += f"; all layouts: {', '.join(shared_words)}" if shared_words else ""
    warnings = too_long_notes(run_memory.spec, run_memory.states.workload)
    table_rows = [
        _layout_row(
            framework_plan,
            layout_candidate,
            is_tie,
            framework_plan.framework.title if plan.other_plans else "",
            shared_words,
        )
        for framework_plan, layout_candidate, is_tie in _rows_with_ties(plan)
    ]
    if not table_rows and ranked_layouts.nearest_candidate is not None:
        table_rows = [_layout_row(plan, ranked_layouts.nearest_candidate)]
    order_position = None if requested_sizes is None else _order_position(plan, requested_sizes)
    notes = without_repetitions(
        [
            *_comparison_notes(plan),
            *notes_on_other_accelerators(plan),
            *large_step_notes(plan.global_batch, int(run_memory.states.workload.seq)),
            *warnings,
            *_nccl_headroom_notes(plan),
            *_exchange_notes(plan),
            *unpriced_notes([] if plan.training_times is None else plan.training_times.unpriced_options),
            *([] if order_position is None else [_order_position_text(order_position)]),
            *micro_batch_notes(plan),
            f"assumed: {plan.assumed_batch_option}, {plan.step_tokens:,} tokens a step"
            if plan.assumed_batch_option
            else "",
            f"assumed: a micro-batch of each device, {plan.step_tokens:,} tokens a step; pre-training, and "
            f"cost, take about {_usual_step_tokens_text(plan)}: "
            f"--global-batch {plan.larger_batch_of_cost}"
            if plan.larger_batch_of_cost
            else "",
            *_plan_notes(plan),
        ]
    )
    title = preset.display
    table_columns = LAYOUT_COLUMNS if plan.training_times is None else TIMED_COLUMNS
    tables = [Table(title, table_columns, table_rows, run_description, notes, _answer_text(plan), name="feasible")]
    if ranked_layouts.refusal_counts:
        reason_rows = [
            row(refusal_reason, layout_count)
            for refusal_reason, layout_count in sorted(
                ranked_layouts.refusal_counts.items(), key=lambda reason_and_count: -reason_and_count[1]
            )
        ]
        tables.append(
            Table(
                "Layouts that are left out",
                REFUSED_COLUMNS,
                reason_rows,
                name="refused",
                is_optional=bool(ranked_layouts.fitting_candidates),
            )
        )
    json_document = _plan_data(preset, plan) | ({} if order_position is None else {"where": order_position})
    deferred_values = {
        "unreplayed": lambda: [unreplayed_layout_data(candidate) for candidate in ranked_layouts.unreplayed_candidates]
    }
    report = Report(
        json_document,
        tables,
        warnings=warnings_of_notes(preset, warnings),
        deferred_values=deferred_values,
        counts_note_lines=True,
    )
    return report.with_target(preset.target)


def _rows_with_ties(plan: LayoutPlan) -> list[tuple[LayoutPlan, Candidate, bool]]:
    """Returns each fitting layout with its framework's plan, and whether its time ties with the one before."""
    framework_rows = plan.fitting_candidates_of_frameworks
    tie_flags = ties_with_previous([layout_candidate for _, layout_candidate in framework_rows])
    return [
        (framework_plan, candidate, is_tie)
        for (framework_plan, candidate), is_tie in zip(framework_rows, tie_flags, strict=True)
    ]


def _order_position(plan: LayoutPlan, requested_sizes: Mapping[str, int]) -> dict[str, Any]:
    """Returns a requested layout's position in the order of layouts, with its options and estimated seconds.

    The position is None if it is not listed; `slower_share` is the share of seconds that it takes beyond the first
    layout, negative if it takes less.
    """
    plans_and_candidates = plan.candidates_in_order
    candidates = [candidate for _, candidate in plans_and_candidates]
    position = position_of_layout(candidates, requested_sizes)
    place_entry: dict[str, Any] = {"layout": dict(requested_sizes), "place": position, "of": len(candidates)}
    if position is None:
        return place_entry
    framework_plan, candidate = plans_and_candidates[position - 1]
    place_entry["options"] = candidate.options
    seconds_range = framework_plan.step_time_range(candidate)
    if seconds_range is not None:
        place_entry["seconds"] = seconds_range.amount.as_data()
    if candidate.seconds is not None and candidates[0].seconds:
        place_entry["slower_share"] = candidate.seconds / candidates[0].seconds - 1
    return place_entry


def _order_position_text(order_position: dict[str, Any]) -> str:
    layout_text = " ".join(f"{degree_name}{group_size}" for degree_name, group_size in order_position["layout"].items())
    if order_position["place"] is None:
        return f"{layout_text}: is not among the {order_position['of']:,} layouts whose tensors may fit"
    position_texts = [f"{layout_text}: place {order_position['place']:,} of {order_position['of']:,}"]
    if "seconds" in order_position:
        position_texts.append(f"likely {duration_text(order_position['seconds']['estimate'])} a step")
    slower_share = order_position.get("slower_share")
    if slower_share is not None and order_position["place"] > 1:
        position_texts.append(
            f"{units.percent(abs(slower_share))} {'less' if slower_share < 0 else 'more'} than the first"
        )
    return f"{', '.join(position_texts)} ({order_position['options']})"


def _answer_text(plan: LayoutPlan) -> str:
    """Returns text on how many layouts fit, or under which frameworks, and the fastest layout's seconds."""
    framework_rows = sorted(plan.fitting_candidates_of_frameworks, key=lambda row: row[1].seconds or 0.0)
    fastest_plan, fastest_layout = next(iter(framework_rows), (plan, None))
    fastest_time = None if fastest_layout is None else fastest_plan.step_time_range(fastest_layout)
    time_text = "" if fastest_time is None else f"; the fastest takes {range_text(fastest_time)} a step"
    if plan.other_plans:
        framework_titles = [framework_plan.framework.title for framework_plan in (plan, *plan.other_plans)]
        return f"it fits under {', '.join(framework_titles[:-1])} and {framework_titles[-1]}{time_text}"
    for compared_layout in plan.compared_layouts:
        compared_time = compared_layout.time_range
        if compared_time is not None and fastest_time is not None and compared_time.estimate < fastest_time.estimate:
            time_text += f"; {compared_layout.framework.title}'s {duration_text(float(compared_time.estimate))}"
    longer_layout = plan.longer_micro_batches
    if longer_layout is not None and longer_layout.time_range is not None:
        time_text += (
            f"; with --batch {longer_layout.micro_batch} {duration_text(float(longer_layout.time_range.estimate))}"
        )
    framework_text = f" under {plan.framework.title}"
    with_expandable_text = (
        "" if plan.bytes_with_expandable_segments is None else f", but one does with {EXPANDABLE_OPTION}"
    )
    more_rows_text = f" ({_more_rows_hint(plan)})" if plan.ranked_layouts.unreplayed_candidates else ""
    return "".join(
        [_fitting_layouts_text(plan.ranked_layouts), framework_text, more_rows_text, with_expandable_text, time_text]
    )


def _more_rows_hint(plan: LayoutPlan) -> str:
    """Returns text on the option that replays more layouts' memory, or on the reason why none are replayed."""
    if plan.ranked_layouts.ended_early:
        return f"the search ended early: {FEWER_LAYOUTS_ADVICE}"
    return f"--rows {plan.row_limit + len(plan.ranked_layouts.unreplayed_candidates)} counts more"


def _comparison_notes(plan: LayoutPlan) -> list[str]:
    """Returns a note per framework whose layouts are not listed: its fastest layout with its seconds, or none."""
    notes = []
    for compared_layout in plan.compared_layouts:
        candidate, compared_time = compared_layout.candidate, compared_layout.time_range
        if candidate is None:
            fits_text = "was found to fit" if compared_layout.has_unknown_layouts else "fits"
            notes.append(f"not listed: {compared_layout.framework.title}, of which no layout {fits_text}")
            continue
        framework_text = f"{compared_layout.framework.title} (--framework {compared_layout.framework_name})"
        time_text = "fits" if compared_time is None else f"takes {range_text(compared_time)} a step"
        notes.append(
            f"not listed: layouts of {framework_text}; {'their fastest' if compared_time else 'one'} {time_text}, "
            f"{candidate_cell(candidate.layout, candidate.recompute, ())}"
        )
    return notes


def micro_batch_notes(plan: LayoutPlan) -> list[str]:
    """Returns a note if a layout with larger micro-batches, which the table leaves out, is faster than the table's."""
    longer_layout = plan.longer_micro_batches
    if longer_layout is None or longer_layout.candidate is None or longer_layout.time_range is None:
        return []
    return [
        f"micro-batches of {longer_layout.micro_batch} sequences (--batch {longer_layout.micro_batch}) wait "
        f"less for the host; their "
        f"fastest layout takes {range_text(longer_layout.time_range)} a step, "
        f"{candidate_cell(longer_layout.candidate.layout, longer_layout.candidate.recompute, ())}"
    ]


def _fitting_layouts_text(ranked_layouts: RankedLayouts) -> str:
    fits_verb = "fits" if len(ranked_layouts.fitting_candidates) == 1 else "fit"
    if not ranked_layouts.unreplayed_candidates and UNTRIED_REASON in ranked_layouts.refusal_counts:
        tried_text = counted_noun(
            ranked_layouts.tried_count - ranked_layouts.refusal_counts[UNTRIED_REASON], "tried layout"
        )
        return f"{len(ranked_layouts.fitting_candidates):,} of {tried_text} {fits_verb}"
    if not ranked_layouts.unreplayed_candidates and not ranked_layouts.fitting_candidates:
        return "no layout fits"
    if not ranked_layouts.unreplayed_candidates:
        tried_text = counted_noun(ranked_layouts.tried_count, "layout")
        return f"{len(ranked_layouts.fitting_candidates):,} of {tried_text} {fits_verb}"
    fitting_count, counted_count = len(ranked_layouts.fitting_candidates), ranked_layouts.replay_count
    first_text = "the first" if counted_count == 1 else f"the first {counted_count:,}"
    if fitting_count != counted_count:
        first_text = f"{fitting_count or 'none'} of {first_text}"
    layout_count = counted_count + len(ranked_layouts.unreplayed_candidates)
    return f"{first_text} of {layout_count:,} layouts, counted in full, {fits_verb}"


def _usual_step_tokens_text(plan: LayoutPlan) -> str:
    """Returns the usual tokens of a training step as text: as published, `4M`, or `1,024 of each device` on many."""
    if plan.published_step_tokens:
        return f"{units.count(plan.published_step_tokens)}, as published"
    return "4M" if usual_step_tokens(plan.devices) == STEP_TOKENS else f"{LEAST_DEVICE_TOKENS:,} of each device"


def _layout_row(
    plan: LayoutPlan,
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
    if plan.training_times is None:
        row_cells += [candidate.device_bytes, candidate.headroom, candidate.communication_bytes, candidate.bubble]
        return Row(row_cells)
    seconds_range = plan.step_time_range(candidate)
    if seconds_range is None:
        return row(*row_cells, None, None, "", candidate.device_bytes, candidate.headroom)
    seconds_cell = DisplayedValue(candidate.seconds, duration_text(candidate.seconds or 0.0, digit_count=3))
    seconds_text = range_ends_text(seconds_range)
    return row(
        *row_cells, seconds_cell, seconds_text, "=" if is_tie else "", candidate.device_bytes, candidate.headroom
    )


def _order_notes(plan: LayoutPlan) -> list[str]:
    """Returns notes on the order of layouts and the order's uncertainty."""
    if plan.training_times is None:
        untimed_text = f"; no time: {plan.untimed_reason}" if plan.untimed_reason else ""
        return [
            f"order: the sum of a layout's positions by headroom, by bytes sent and by bubble; headroom beyond "
            f"{ENOUGH_HEADROOM:.0%} of the memory is no merit{untimed_text}"
        ]
    fastest_plan, fastest_candidate = plan.first_candidate
    first_time = None if fastest_candidate is None else fastest_plan.step_time_range(fastest_candidate)
    training_times = fastest_plan.training_times
    software_stack = training_times.stack if training_times is not None else plan.training_times.stack
    timed_rows = _rows_with_ties(plan)
    tie_text = (
        f"=: within {TIE_SHARE * 100:g} % of the fastest of its tie, where the smallest cp and fewest kinds of "
        "parallelism "
        "come first; "
        if any(is_tie for _, _, is_tie in timed_rows)
        else ""
    )
    order_text = "ranges move together, so the order is surer than the seconds: measure the first three"
    return [
        *([] if first_time is None else [test_errors_text(first_time, software_stack.title)]),
        *([f"{tie_text}{order_text}"] if len(timed_rows) > 1 else []),
    ]


EXPANDABLE_OPTION = "--allocator expandable"
"""The option for expandable segments, with which torch's allocator leaves few unused bytes between tensors."""

LITTLE_HEADROOM = 0.02
"""Fraction of a device's memory that NCCL's buffers may need; llmcalc counts these for few layouts."""


def _nccl_headroom_notes(plan: LayoutPlan) -> list[str]:
    """Returns a note if the first layout leaves too little memory for NCCL's buffers, and these are not counted."""
    first_plan, first_layout = plan.first_candidate
    if (
        first_layout is None
        or first_layout.headroom > LITTLE_HEADROOM * first_layout.capacity
        or has_known_buffers(first_layout.layout, first_plan.framework, first_plan.memory.cuda_runtime)
    ):
        return []
    return [
        f"the first layout leaves {units.GIB.write(first_layout.headroom)} {units.GIB.name}, and NCCL's buffers, which "
        "are not counted, come on top: it may run out of memory"
    ]


def _exchange_notes(plan: LayoutPlan) -> list[str]:
    """Returns a note if the framework's other token dispatcher for experts changes the first layout's seconds."""
    first_plan, first_candidate = plan.first_candidate
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
        lambda software_stack: training_times.seconds_on(
            software_stack, first_candidate.layout, first_candidate.micro_batches
        ),
        "the first layout takes ",
    )


def notes_on_other_accelerators(plan: LayoutPlan) -> list[str]:
    """Returns notes on frameworks that are not tried, or that do not run on the plan's accelerator."""
    hardware, untried_notes = plan.hardware, list(plan.untried_framework_sentences)
    if hardware is None or (hardware.is_gpu and hardware.vendor != "Apple"):
        return untried_notes
    return [
        *untried_notes,
        f"{plan.framework.title} runs on GPUs of NVIDIA and AMD: for {hardware.title}, which it does not "
        "support, these are the bytes of its kernels there",
    ]


def _plan_notes(plan: LayoutPlan) -> list[str]:
    framework_text = "the framework in its row" if plan.other_plans else plan.framework.title
    notes = [
        *_order_notes(plan),
        f"kernels and buffers of {framework_text}; required, and what is free (headroom): of the rank that needs "
        "most; sent: by one rank in a step",
    ]
    if attention_implementation_of(plan.memory, plan.framework) == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if plan.layout_count_fitting_with_recompute is not None:
        recompute_text = f"{plan.layout_count_fitting_with_recompute:,} of {plan.ranked_layouts.tried_count:,} may fit"
        notes.insert(0, f"with --recompute full {recompute_text}: their tensors do")
    if plan.ranked_layouts.unreplayed_candidates:
        layout_count = len(plan.ranked_layouts.unreplayed_candidates)
        most_bytes = max(
            layout_candidate.upper_bound_bytes for layout_candidate in plan.ranked_layouts.unreplayed_candidates
        )
        notes.insert(
            0,
            f"{layout_count:,} more of {counted_noun(plan.ranked_layouts.tried_count, 'layout')} may fit: their "
            "tensors do, and unused blocks of the allocator come on top (at most "
            f"{units.GIB.write(most_bytes)} {units.GIB.name} in all)"
            + (f"; {_more_rows_hint(plan)}" if plan.other_plans else ""),  # the title of one framework has the hint
        )
    if not plan.ranked_layouts.fitting_candidates and plan.ranked_layouts.nearest_candidate is not None:
        notes.append("shown: the layout that requires least, of those that do not fit")
        if plan.bytes_with_expandable_segments is not None:
            notes.insert(
                0,
                f"with {EXPANDABLE_OPTION}, which is PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, it requires "
                f"{units.GIB.write(plan.bytes_with_expandable_segments)} {units.GIB.name} and fits",
            )
    return notes


def replayed_layout_data(
    layout_candidate: Candidate, time_range: TimeRange | None = None, is_tie: bool = False
) -> dict[str, Any]:
    """Returns a replayed layout of a plan as plain data. Bytes are exact integers.

    is_tie: whether its time equals that of the layouts before it.
    """
    time_data = {} if time_range is None else {"seconds": time_range.amount.as_data(), "tie": is_tie}
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


def unreplayed_layout_data(layout_candidate: Candidate) -> dict[str, Any]:
    """Returns a layout whose memory was not replayed as plain data. Bytes are exact integers."""
    return {
        "layout": layout_candidate.layout.data(),
        "options": layout_candidate.options,
        "num_microbatches": layout_candidate.micro_batches,
        "tensor_bytes": layout_candidate.device_bytes,
        "upper_bound_bytes": layout_candidate.upper_bound_bytes,
        "communication_bytes": layout_candidate.communication_bytes,
        "bubble": layout_candidate.bubble,
    }


def _plan_data(preset: Preset, plan: LayoutPlan) -> dict[str, Any]:
    ranked_layouts = plan.ranked_layouts
    nearest_entry = (
        None if ranked_layouts.nearest_candidate is None else replayed_layout_data(ranked_layouts.nearest_candidate)
    )
    return {
        "model": model_data(preset),
        "hardware": plan.hardware.name,
        "devices": plan.devices,
        "framework": plan.framework.name,
        "global_batch": plan.global_batch,
        "tried": sum(framework_plan.ranked_layouts.tried_count for framework_plan in (plan, *plan.other_plans)),
        "by": "memory" if plan.training_times is None else "time",
        "feasible": [
            replayed_layout_data(layout_candidate, framework_plan.step_time_range(layout_candidate), is_tie)
            | ({"framework": framework_plan.framework.name} if plan.other_plans else {})
            for framework_plan, layout_candidate, is_tie in _rows_with_ties(plan)
        ],
        "other_frameworks": [
            {"framework": compared_layout.framework_name, "fits": compared_layout.candidate is not None}
            | (
                {}
                if compared_layout.candidate is None
                else replayed_layout_data(compared_layout.candidate, compared_layout.time_range)
            )
            for compared_layout in plan.compared_layouts
        ],
        "longer_micro_batches": None
        if plan.longer_micro_batches is None or plan.longer_micro_batches.candidate is None
        else {"batch": plan.longer_micro_batches.micro_batch}
        | replayed_layout_data(plan.longer_micro_batches.candidate, plan.longer_micro_batches.time_range),
        "unreplayed": [],
        "feasible_with_recompute": plan.layout_count_fitting_with_recompute,
        "refused": ranked_layouts.refusal_counts,
        "nearest": nearest_entry,
        "nearest_expandable_bytes": plan.bytes_with_expandable_segments,
    }
