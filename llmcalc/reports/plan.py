"""`llmcalc plan`: the layouts that fit, best first, and the reasons why others do not."""

from __future__ import annotations

from typing import Any

from .. import units
from ..frameworks.ranks import attention_of
from ..sources.preset import Preset
from ..studies.plan import Candidate, LayoutPlan, Plan
from .document import Column, Report, Row, Table, said
from .memory import run_text
from .notes import plural, too_long, warned
from .share import layout_cell
from .summary import model_data

LAYOUT_COLUMNS = (
    Column("layout", "layout", justify="left", wrap=True),
    Column("micro_batches", "micro-batches", units.exact),
    Column("device_bytes", "required", units.GIB.write),
    Column("headroom_bytes", "headroom", units.GIB.write),
    Column("communication_bytes", "sent", units.GIB.write),
    Column("bubble", "bubble", units.percent),
)

REFUSED_COLUMNS = (Column("reason", "why not", justify="left", wrap=True), Column("count", "layouts", units.exact))


def report(preset: Preset, planned: LayoutPlan, instead: str = "") -> Report:
    """Returns the answer as data and as tables: the best layouts, and the number of refused layouts per reason.

    instead: the nearest possible layouts if no layout is possible; default empty.
    """
    plan, memory = planned.plan, planned.memory
    capacity = f"{units.GIB.write(planned.hardware.capacity_bytes)} {units.GIB.name}"
    accelerators = f"{plural(planned.devices, 'device')} with {capacity} each"
    run = f"{run_text(memory.states)}, {plural(planned.global_batch, 'sequence')} a step"
    run_description = f"{run}, on {accelerators} ({planned.hardware.title}); sizes in {units.GIB.name}"
    warnings = too_long(memory.spec, memory.states.workload)
    rows = [_row(candidate) for candidate in plan.feasible]
    if not rows and plan.nearest is not None:
        rows = [_row(plan.nearest)]
    notes = said([*warnings, instead, *_notes(planned)])
    title = preset.display
    tables = [Table(title, LAYOUT_COLUMNS, rows, run_description, notes, _answer(plan), name="feasible")]
    if plan.refused:
        reasons = [Row([reason, count]) for reason, count in sorted(plan.refused.items(), key=lambda item: -item[1])]
        tables.append(Table("Layouts that are left out", REFUSED_COLUMNS, reasons, name="refused"))
    return Report(_data(preset, planned), tables, warnings=warned(preset, warnings)).of(preset.target)


def _answer(plan: Plan) -> str:
    """Writes how many layouts fit: of all, or of the replayed ones if some were not replayed."""
    if not plan.unreplayed:
        return f"{len(plan.feasible):,} of {plan.tried:,} layouts fit" if plan.feasible else "no layout fits"
    return f"{len(plan.feasible) or 'none'} of {plural(plan.replays, 'replayed layout')} fit"


def _row(candidate: Candidate) -> Row:
    return Row(
        [
            layout_cell(candidate.layout),
            candidate.micro_batches,
            candidate.device_bytes,
            candidate.headroom,
            candidate.communication_bytes,
            candidate.bubble,
        ]
    )


def _notes(planned: LayoutPlan) -> list[str]:
    notes = [
        f"kernels and buffers of {planned.framework.title}; required and headroom: of the rank that needs "
        "most; sent: by one rank in a step",
        "order: the sum of a layout's positions by headroom, by bytes sent and by bubble; time is not known",
    ]
    if attention_of(planned.memory, planned.framework) == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if planned.recomputed is not None:
        fit_text = f"{planned.recomputed:,} of {planned.plan.tried:,} may fit"
        notes.insert(0, f"with --recompute full {fit_text}: their tensors do")
    if planned.plan.unreplayed:
        count = len(planned.plan.unreplayed)
        upper_bound = max(candidate.upper_bound for candidate in planned.plan.unreplayed)
        notes.insert(
            0,
            f"{count:,} more of {plural(planned.plan.tried, 'layout')} may fit: their tensors do, and the allocator's "
            f"overhead is not known (at most {units.GIB.write(upper_bound)} {units.GIB.name} in all); --rows "
            f"{planned.rows + count} replays more of them",
        )
    if not planned.plan.tried:
        notes.insert(0, f"the given group sizes do not divide {plural(planned.devices, 'device')}")
    if not planned.plan.feasible and planned.plan.nearest is not None:
        notes.append("shown: the layout that requires least, of those that do not fit")
    return notes


def candidate_data(candidate: Candidate) -> dict[str, Any]:
    """Returns a layout as plain data; bytes are exact integers."""
    return {
        "layout": candidate.layout.data(),
        "options": candidate.layout.options(),
        "num_microbatches": candidate.micro_batches,
        "device_bytes": candidate.device_bytes,
        "headroom_bytes": candidate.headroom,
        "communication_bytes": candidate.communication_bytes,
        "bubble": candidate.bubble,
        "replayed": candidate.replayed,
    }


def unreplayed_data(candidate: Candidate) -> dict[str, Any]:
    """Returns a layout that was not replayed as plain data; bytes are exact integers."""
    return {
        "layout": candidate.layout.data(),
        "options": candidate.layout.options(),
        "num_microbatches": candidate.micro_batches,
        "tensor_bytes": candidate.device_bytes,
        "upper_bound_bytes": candidate.upper_bound,
        "communication_bytes": candidate.communication_bytes,
        "bubble": candidate.bubble,
    }


def _data(preset: Preset, planned: LayoutPlan) -> dict[str, Any]:
    plan = planned.plan
    return {
        "model": model_data(preset),
        "hardware": planned.hardware.name,
        "devices": planned.devices,
        "framework": planned.framework.name,
        "global_batch": planned.global_batch,
        "tried": plan.tried,
        "feasible": [candidate_data(candidate) for candidate in plan.feasible],
        "unreplayed": [unreplayed_data(candidate) for candidate in plan.unreplayed],
        "feasible_with_recompute": planned.recomputed,
        "refused": plan.refused,
        "nearest": None if plan.nearest is None else candidate_data(plan.nearest),
    }
