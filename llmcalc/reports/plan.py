"""`llmcalc plan`: the layouts that fit, the best first, and why the others do not."""

from __future__ import annotations

from typing import Any

from .. import units
from ..frameworks.ranks import attention_of
from ..sources.preset import Preset
from ..studies.plan import Candidate, Plan, Planned
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


def report(preset: Preset, found: Planned, instead: str = "") -> Report:
    """The answer as data and as tables: the best layouts, and how many of the others are refused for what.

    instead: where no layout is possible at all, which others are.
    """
    plan, one = found.plan, found.one
    many = (
        f"{plural(found.devices, 'device')} with {units.GIB.write(found.hardware.capacity_bytes)} {units.GIB.name} each"
    )
    run = f"{run_text(one.states)}, {plural(found.global_batch, 'sequence')} a step"
    aside = f"{run}, on {many} ({found.hardware.title}); sizes in {units.GIB.name}"
    warnings = too_long(one.spec, one.states.workload)
    rows = [_row(candidate) for candidate in plan.feasible]
    if not rows and plan.nearest is not None:
        rows = [_row(plan.nearest)]
    notes = said([*warnings, instead, *_notes(found)])
    title = preset.display
    tables = [Table(title, LAYOUT_COLUMNS, rows, aside, notes, _answer(plan), name="feasible")]
    if plan.refused:
        reasons = [Row([reason, count]) for reason, count in sorted(plan.refused.items(), key=lambda one: -one[1])]
        tables.append(Table("Layouts that are left out", REFUSED_COLUMNS, reasons, name="refused"))
    return Report(_data(preset, found), tables, warnings=warned(preset, warnings)).of(preset.target)


def _answer(plan: Plan) -> str:
    """How many layouts fit; of those that were replayed where others were not."""
    if not plan.unreplayed:
        return f"{len(plan.feasible):,} of {plan.tried:,} layouts fit" if plan.feasible else "no layout fits"
    return f"{len(plan.feasible) or 'none'} of {plural(plan.replays, 'replayed layout')} fit"


def _row(one: Candidate) -> Row:
    return Row(
        [
            layout_cell(one.layout),
            one.micro_batches,
            one.device_bytes,
            one.headroom,
            one.communication_bytes,
            one.bubble,
        ]
    )


def _notes(found: Planned) -> list[str]:
    notes = [
        f"kernels and buffers of {found.framework.title}; required and headroom: of the rank that needs "
        "most; sent: by one rank in a step",
        "order: the sum of a layout's places by headroom, by what is sent and by bubble; time is not known",
    ]
    if attention_of(found.one, found.framework) == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if found.recomputed is not None:
        fit = f"{found.recomputed:,} of {found.plan.tried:,} may fit"
        notes.insert(0, f"with --recompute full {fit}: their tensors do")
    if found.plan.unreplayed:
        count = len(found.plan.unreplayed)
        most = max(candidate.upper_bound for candidate in found.plan.unreplayed)
        notes.insert(
            0,
            f"{count:,} more of {plural(found.plan.tried, 'layout')} may fit: their tensors do, and what the allocator "
            f"adds is not known (at most {units.GIB.write(most)} {units.GIB.name} in all); --rows "
            f"{found.rows + count} replays more of them",
        )
    if not found.plan.tried:
        notes.insert(0, f"no sizes of groups that are given make up {plural(found.devices, 'device')}")
    if not found.plan.feasible and found.plan.nearest is not None:
        notes.append("the layout that is shown needs least of those that do not fit")
    return notes


def candidate_data(one: Candidate) -> dict[str, Any]:
    """A layout, with bytes as exact integers."""
    return {
        "layout": one.layout.data(),
        "options": one.layout.options(),
        "num_microbatches": one.micro_batches,
        "device_bytes": one.device_bytes,
        "headroom_bytes": one.headroom,
        "communication_bytes": one.communication_bytes,
        "bubble": one.bubble,
        "replayed": one.replayed,
    }


def unreplayed_data(candidate: Candidate) -> dict[str, Any]:
    """A layout that was not replayed, with bytes as exact integers."""
    return {
        "layout": candidate.layout.data(),
        "options": candidate.layout.options(),
        "num_microbatches": candidate.micro_batches,
        "tensor_bytes": candidate.device_bytes,
        "upper_bound_bytes": candidate.upper_bound,
        "communication_bytes": candidate.communication_bytes,
        "bubble": candidate.bubble,
    }


def _data(preset: Preset, found: Planned) -> dict[str, Any]:
    plan = found.plan
    return {
        "model": model_data(preset),
        "hardware": found.hardware.name,
        "devices": found.devices,
        "framework": found.framework.name,
        "global_batch": found.global_batch,
        "tried": plan.tried,
        "feasible": [candidate_data(one) for one in plan.feasible],
        "unreplayed": [unreplayed_data(one) for one in plan.unreplayed],
        "feasible_with_recompute": found.recomputed,
        "refused": plan.refused,
        "nearest": None if plan.nearest is None else candidate_data(plan.nearest),
    }
