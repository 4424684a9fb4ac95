"""The report of `llmcalc plan`: the layouts that fit, best first, and the reasons against others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .. import units
from ..errors import InputError
from ..frameworks.ranks import attention_of
from ..frameworks.registry import FOR_PLANS, WITHOUT_A_NAME, framework
from ..sources.preset import Preset
from ..studies.layout_candidates import ENOUGH_HEADROOM, Candidate, position_of_layout, tie_flags
from ..studies.plan import FEWER_LAYOUTS, UNTRIED, LayoutPlan, Plan
from ..timing.spread import TIE, Range
from .document import Column, DisplayedValue, Report, Row, Table, text_of_cell, without_repetitions
from .memory_notes import run_text
from .notes import plural, too_long_notes, warnings_of_notes
from .seconds import class_text, duration, range_of, range_text
from .share import candidate_cell, common_words
from .summary import model_data

LAYOUT_COLUMNS = (
    Column("layout", "layout", justify="left", wrap=True),
    Column("micro_batches", "micro-batches", units.exact),
    Column("device_bytes", "required", units.GIB.write),
    Column("headroom_bytes", "headroom", units.GIB.write),
    Column("communication_bytes", "sent", units.GIB.write),
    Column("bubble", "bubble", units.percent),
)

TIMED_COLUMNS = (
    *LAYOUT_COLUMNS[:2],
    Column("seconds", "step", text_of_cell),
    Column("range", "range", justify="left"),
    Column("tie", "tie"),
    LAYOUT_COLUMNS[2],
    Column("headroom_bytes", "free", units.GIB.write),
)

REFUSED_COLUMNS = (Column("reason", "why not", justify="left", wrap=True), Column("count", "layouts", units.exact))


def report(
    preset: Preset, layout_plan: LayoutPlan, instead: str = "", requested_sizes: Mapping[str, int] | None = None
) -> Report:
    """Returns the report: the best layouts, and the number of refused layouts per reason.

    instead: the nearest possible layouts if no layout is possible; default empty.
    requested_sizes: sizes of a layout whose place in the order is shown; default none.
    """
    plan, memory = layout_plan.plan, layout_plan.memory
    capacity = f"{units.GIB.write(layout_plan.hardware.capacity_bytes)} {units.GIB.name}"
    accelerators = f"{plural(layout_plan.devices, 'device')} with {capacity} each"
    run_title = f"{run_text(memory.states)}, {plural(layout_plan.global_batch, 'sequence')} a step"
    words = common_words([candidate for _, candidate in layout_plan.rows_of_frameworks])
    run_description = f"{run_title}, on {accelerators} ({layout_plan.hardware.title}); sizes in {units.GIB.name}"
    run_description += f"; all layouts: {', '.join(words)}" if words else ""
    warnings = too_long_notes(memory.spec, memory.states.workload)
    rows = [
        _layout_row(
            framework_plan, candidate, is_tie, framework_plan.framework.title if layout_plan.other_plans else "", words
        )
        for framework_plan, candidate, is_tie in _rows_with_ties(layout_plan)
    ]
    if not rows and plan.nearest is not None:
        rows = [_layout_row(layout_plan, plan.nearest)]
    layout_position = None if requested_sizes is None else _place_in_order(layout_plan, requested_sizes)
    notes = without_repetitions(
        [
            *warnings,
            instead,
            *([] if layout_position is None else [_place_text(layout_position)]),
            f"assumed: {layout_plan.assumed_batch}, {layout_plan.step_tokens:,} tokens a step"
            if layout_plan.assumed_batch
            else "",
            f"assumed: a micro-batch of each device, {layout_plan.step_tokens:,} tokens a step; pre-training, and "
            f"cost, take about 4M: --global-batch {layout_plan.batch_of_cost}"
            if layout_plan.batch_of_cost
            else "",
            *_plan_notes(layout_plan),
        ]
    )
    title = preset.display
    columns = LAYOUT_COLUMNS if layout_plan.times is None else TIMED_COLUMNS
    tables = [Table(title, columns, rows, run_description, notes, _answer_text(layout_plan), name="feasible")]
    if plan.refused:
        reason_rows = [
            Row([reason, layout_count])
            for reason, layout_count in sorted(plan.refused.items(), key=lambda item: -item[1])
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
    document = _plan_data(preset, layout_plan) | ({} if layout_position is None else {"where": layout_position})
    lazy_fields = {"unreplayed": lambda: [unreplayed_data(candidate) for candidate in plan.unreplayed]}
    report = Report(
        document,
        tables,
        warnings=warnings_of_notes(preset, warnings),
        computed_last=lazy_fields,
        counts_notes=True,
    )
    return report.for_target(preset.target)


def _rows_with_ties(layout_plan: LayoutPlan) -> list[tuple[LayoutPlan, Candidate, bool]]:
    """Returns the layouts that fit, each with the plan of its framework, and whether its time is that of a tie."""
    rows = layout_plan.rows_of_frameworks
    are_ties = tie_flags([candidate for _, candidate in rows])
    return [
        (framework_plan, candidate, is_tie) for (framework_plan, candidate), is_tie in zip(rows, are_ties, strict=True)
    ]


def _place_in_order(layout_plan: LayoutPlan, requested_sizes: Mapping[str, int]) -> dict[str, Any]:
    """Returns a layout's position among the sorted layouts that may fit; None if it is not listed."""
    layouts_in_order = layout_plan.order
    return {
        "layout": dict(requested_sizes),
        "place": position_of_layout(layouts_in_order, requested_sizes),
        "of": len(layouts_in_order),
    }


def _place_text(layout_position: dict[str, Any]) -> str:
    layout = " ".join(f"{name}{degree}" for name, degree in layout_position["layout"].items())
    if layout_position["place"] is None:
        return f"{layout}: is not among the {layout_position['of']:,} layouts whose tensors may fit"
    return f"{layout}: place {layout_position['place']:,} of {layout_position['of']:,}"


def _answer_text(layout_plan: LayoutPlan) -> str:
    """Writes the number of layouts that fit, and the seconds of the fastest layout."""
    rows = sorted(layout_plan.rows_of_frameworks, key=lambda row: row[1].seconds or 0.0)
    fastest_plan, fastest_layout = next(iter(rows), (layout_plan, None))
    fastest_time = None if fastest_layout is None else fastest_plan.range(fastest_layout)
    time_text = "" if fastest_time is None else f"; the fastest takes {range_text(fastest_time)} a step"
    if layout_plan.other_plans:
        names = [framework_plan.framework.title for framework_plan in (layout_plan, *layout_plan.other_plans)]
        return f"it fits under {', '.join(names[:-1])} and {names[-1]}{time_text}"
    return _fitting_count(layout_plan.plan) + time_text


def _fitting_count(plan: Plan) -> str:
    fits_verb = "fits" if len(plan.feasible) == 1 else "fit"
    if not plan.unreplayed and UNTRIED in plan.refused:
        return f"{len(plan.feasible):,} of {plan.tried - plan.refused[UNTRIED]:,} layouts that were tried {fits_verb}"
    if not plan.unreplayed:
        return f"{len(plan.feasible):,} of {plan.tried:,} layouts {fits_verb}" if plan.feasible else "no layout fits"
    return f"{len(plan.feasible) or 'none'} of {plural(plan.replays, 'replayed layout')} {fits_verb}"


def _layout_row(
    layout_plan: LayoutPlan,
    candidate: Candidate,
    is_tie: bool = False,
    framework_title: str = "",
    words: Sequence[str] = (),
) -> Row:
    framework_text = f" ({framework_title})" if framework_title else ""
    cells = [candidate_cell(candidate.layout, candidate.recompute, words) + framework_text, candidate.micro_batches]
    if layout_plan.times is None:
        cells += [candidate.device_bytes, candidate.headroom, candidate.communication_bytes, candidate.bubble]
        return Row(cells)
    estimate = layout_plan.range(candidate)
    if estimate is None:
        return Row([*cells, None, None, "", candidate.device_bytes, candidate.headroom])
    seconds_cell, seconds = (
        DisplayedValue(candidate.seconds, duration(candidate.seconds or 0.0, digits=3)),
        range_of(estimate),
    )
    return Row([*cells, seconds_cell, seconds, "=" if is_tie else "", candidate.device_bytes, candidate.headroom])


def _order_notes(layout_plan: LayoutPlan) -> list[str]:
    """Returns notes on the order of layouts and the order's uncertainty."""
    if layout_plan.times is None:
        untimed_text = f"; no time: {layout_plan.untimed_reason}" if layout_plan.untimed_reason else ""
        return [
            f"order: the sum of a layout's positions by headroom, by bytes sent and by bubble; headroom beyond "
            f"{ENOUGH_HEADROOM:.0%} of the memory is no merit{untimed_text}"
        ]
    fastest_plan, fastest_layout = next(iter(layout_plan.rows_of_frameworks), (layout_plan, None))
    first_time = None if fastest_layout is None else fastest_plan.range(fastest_layout)
    stack = fastest_plan.times.stack if fastest_plan.times is not None else layout_plan.times.stack
    return [
        *([] if first_time is None else [class_text(first_time, stack.title)]),
        f"=: within {TIE * 100:g} % of the fastest of its tie, where the smallest cp and fewest kinds of parallelism "
        "come first; ranges move together, so the order is surer than the seconds: measure the first three",
    ]


def _plan_notes(layout_plan: LayoutPlan) -> list[str]:
    frameworks = "the framework in its row" if layout_plan.other_plans else layout_plan.framework.title
    notes = [
        *_order_notes(layout_plan),
        f"kernels and buffers of {frameworks}; required, and what is free (headroom): of the rank that needs "
        "most; sent: by one rank in a step",
    ]
    if attention_of(layout_plan.memory, layout_plan.framework) == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if layout_plan.recomputed is not None:
        fit_text = f"{layout_plan.recomputed:,} of {layout_plan.plan.tried:,} may fit"
        notes.insert(0, f"with --recompute full {fit_text}: their tensors do")
    if layout_plan.plan.unreplayed:
        layout_count = len(layout_plan.plan.unreplayed)
        upper_bound = max(candidate.upper_bound for candidate in layout_plan.plan.unreplayed)
        more_replays = f"--rows {layout_plan.rows + layout_count} replays more of them"
        if layout_plan.plan.ended_early:
            more_replays = f"the search ended early: {FEWER_LAYOUTS}"
        notes.insert(
            0,
            f"{layout_count:,} more of {plural(layout_plan.plan.tried, 'layout')} may fit: their tensors do, and the "
            "allocator's "
            f"overhead is not known (at most {units.GIB.write(upper_bound)} {units.GIB.name} in all); {more_replays}",
        )
    if not layout_plan.plan.tried:
        notes.insert(0, f"the given group sizes do not divide {plural(layout_plan.devices, 'device')}")
    if not layout_plan.plan.feasible and layout_plan.plan.nearest is not None:
        notes.append("shown: the layout that requires least, of those that do not fit")
        notes[:0] = advice_on_shards(layout_plan)
    return notes


def advice_on_shards(layout_plan: LayoutPlan) -> list[str]:
    """Returns why replicas are whole, with what has shards, if only eager PyTorch runs the optimizer."""
    if layout_plan.framework.name != WITHOUT_A_NAME:
        return []
    try:
        framework(FOR_PLANS[1]).check(layout_plan.memory, "")
    except InputError as error:
        return [f"replicas are whole. {str(error).partition(', or whole replicas')[0]}"]
    return []


def candidate_data(candidate: Candidate, seconds: Range | None = None, is_tie: bool = False) -> dict[str, Any]:
    """Returns a layout as plain data. Bytes are exact integers.

    is_tie: whether its time equals that of the layouts before it.
    """
    time_data = {} if seconds is None else {"seconds": seconds.amount.as_data(), "tie": is_tie}
    return time_data | {
        "layout": candidate.layout.data(),
        "options": candidate.options,
        "num_microbatches": candidate.micro_batches,
        "device_bytes": candidate.device_bytes,
        "headroom_bytes": candidate.headroom,
        "communication_bytes": candidate.communication_bytes,
        "bubble": candidate.bubble,
        "replayed": candidate.replayed,
    }


def unreplayed_data(candidate: Candidate) -> dict[str, Any]:
    """Returns a layout that was not replayed as plain data. Bytes are exact integers."""
    return {
        "layout": candidate.layout.data(),
        "options": candidate.options,
        "num_microbatches": candidate.micro_batches,
        "tensor_bytes": candidate.device_bytes,
        "upper_bound_bytes": candidate.upper_bound,
        "communication_bytes": candidate.communication_bytes,
        "bubble": candidate.bubble,
    }


def _plan_data(preset: Preset, layout_plan: LayoutPlan) -> dict[str, Any]:
    plan = layout_plan.plan
    return {
        "model": model_data(preset),
        "hardware": layout_plan.hardware.name,
        "devices": layout_plan.devices,
        "framework": layout_plan.framework.name,
        "global_batch": layout_plan.global_batch,
        "tried": sum(framework_plan.plan.tried for framework_plan in (layout_plan, *layout_plan.other_plans)),
        "by": "memory" if layout_plan.times is None else "time",
        "feasible": [
            candidate_data(candidate, framework_plan.range(candidate), is_tie)
            | ({"framework": framework_plan.framework.name} if layout_plan.other_plans else {})
            for framework_plan, candidate, is_tie in _rows_with_ties(layout_plan)
        ],
        "unreplayed": [],
        "feasible_with_recompute": layout_plan.recomputed,
        "refused": plan.refused,
        "nearest": None if plan.nearest is None else candidate_data(plan.nearest),
    }
