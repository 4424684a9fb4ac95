"""`llmcalc fit`: whether a run fits on an accelerator, how much of it would, and what would make it fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .. import units
from ..accelerator import TIGHT, Fit
from ..device_memory.estimate import Memory
from ..frameworks.ranks import attention_of
from ..sources.preset import Preset
from ..studies.fit import Change, Fitting
from ..studies.fit_devices import DeviceFitting
from ..studies.fit_serving import ServingFitting
from .document import Column, Report, Row, Table, said
from .memory import device_data, execution_data, run_text, verdict_of, workload_data
from .notes import plural, too_long, warned
from .share import layout_cell, layout_text
from .summary import model_data

LARGEST_COLUMNS = (
    Column("quantity", "largest", justify="left"),
    Column("value", "number", units.exact),
    Column("given", "given", units.exact),
)

CHANGE_COLUMNS = (
    Column("option", "change", justify="left", wrap=True),
    Column("device_bytes", f"needed, {units.GIB.name}", units.GIB.write),
    Column("share", "share", units.percent),
    Column("verdict", "verdict", justify="left", verdict=True),
)

VERDICTS = {"fits": "it fits", "tight": "it fits tightly", "no": "it does not fit"}


def report(preset: Preset, found: Fitting) -> Report:
    """The answer as data and as two tables: the largest numbers, and the changes."""
    use, hardware = found.memory.states, found.fit.hardware
    rows = [
        Row([_sequences(found), found.batch, use.workload.batch]),
        Row(["tokens of each sequence (--seq)", found.seq, use.workload.seq]),
    ]
    screen = _Screen(f"{VERDICTS[found.fit.verdict]} on {hardware.title}", run_text(use), rows, _notes(found))
    return screen.report(preset, found.memory, found.fit, found.changes, _data(preset, found), CHANGES_NOTE)


def devices_report(preset: Preset, found: DeviceFitting) -> Report:
    """The answer for many devices: the best layout, the fewest devices, the largest numbers and the changes."""
    planned, fit, best, use = found.planned, found.fit, found.best, found.memory.states
    rows = [Row(["fewest devices (--devices)", found.needed, planned.devices])]
    if fit.verdict != "no":
        rows += [
            Row(["sequences of a micro-batch (--batch)", found.batch, use.workload.batch]),
            Row(["tokens of each sequence (--seq)", found.seq, use.workload.seq]),
        ]
    name = planned.framework.title
    notes = [
        f"kernels and buffers of {name}; the layout with the best place of {planned.plan.tried:,} (llmcalc plan)",
        "fewest: of this number, its halves and its doubles; the largest of each with this layout, the others as given",
    ]
    data = {
        "model": model_data(preset),
        "workload": workload_data(found.memory),
        "execution": execution_data(found.memory, attention_of(found.memory, planned.framework)),
        "hardware": fit.hardware.name,
        "devices": planned.devices,
        "framework": planned.framework.name,
        "layout": best.layout.data(),
        **_fit_data(fit),
        "needed_devices": found.needed,
        "needed_layout": None if found.fewest is None else found.fewest.layout.data(),
        "largest": {"batch": found.batch, "seq": found.seq, "users": None},
        "changes": _changes_data(found.changes),
    }
    screen = _Screen(
        f"{VERDICTS[fit.verdict]} on {plural(planned.devices, fit.hardware.title)}",
        f"{run_text(use)}, {plural(planned.global_batch, 'sequence')} a step, {layout_text(best.layout)}",
        rows,
        notes,
    )
    return screen.report(preset, found.memory, fit, found.changes, data)


def serving_report(preset: Preset, found: ServingFitting) -> Report:
    """The answer for passes on many devices: the best layout, all that were tried, the largest numbers, the changes."""
    one, best, worst = found.one, found.best, found.fitting
    use, fit, devices = one.states, found.best.fit, found.best.layout.world
    rows = [Row(["fewest devices of a replica", found.needed, best.layout.tp * best.layout.pp])]
    if fit.verdict != "no":
        rows += [
            Row(["users of each replica (--users)", worst.batch, use.workload.batch]),
            Row(["tokens of each sequence (--seq)", worst.seq, use.workload.seq]),
        ]
    notes = [
        "kernels of torch; the layout with most replicas that fits, or the one that requires least",
        "the largest of each with this layout, the others as given",
    ]
    columns = (Column("layout", "layout", justify="left"), *CHANGE_COLUMNS[1:])
    tried = [
        Row([layout_cell(each.layout), each.fit.needed, each.fit.share, verdict_of(each.fit)]) for each in found.tried
    ]
    data = {
        **_data(preset, worst),
        "devices": devices,
        "framework": "torch",
        "layout": best.layout.data(),
        "rank": best.rank,
        "needed_devices": found.needed,
        "needed_layout": None if found.fewest is None else found.fewest.data(),
        "layouts": [
            {"layout": each.layout.data(), "device_bytes": each.fit.needed, "verdict": each.fit.verdict}
            for each in found.tried
        ],
    }
    screen = _Screen(
        f"{VERDICTS[fit.verdict]} on {plural(devices, fit.hardware.title)}",
        f"{run_text(use)} on each replica, {layout_text(best.layout)}, rank {best.rank}",
        rows,
        notes,
        [Table("Layouts", columns, tried, name="layouts")],
    )
    return screen.report(preset, one, fit, worst.changes, data, CHANGES_NOTE)


CHANGES_NOTE = "changes of kernels, recomputation and chunks leave results as they are; formats and adapters do not"


class _Screen(NamedTuple):
    """What the answers of one device and of many have in common.

    answer, aside, notes: of the first table. rows: its numbers. more: tables after it.
    """

    answer: str
    aside: str
    rows: Sequence[Row]
    notes: Sequence[str]
    more: Sequence[Table] = ()

    def report(
        self, preset: Preset, one: Memory, fit: Fit, changes: Sequence[Change], data: dict[str, Any], remark: str = ""
    ) -> Report:
        """The answer. remark: a note about the changes."""
        warnings = too_long(one.spec, one.states.workload) + list(() if fit.hardware.sources else fit.hardware.notes)
        aside = (
            f"{self.aside}: {units.GIB.write(fit.needed)} of {units.GIB.write(fit.capacity)} {units.GIB.name} "
            f"({units.percent(fit.share)})"
        )
        notes = said([*warnings, *self.notes])
        tables = [Table(preset.display, LARGEST_COLUMNS, self.rows, aside, notes, self.answer, name="largest")]
        tables += self.more
        if changes:
            rows = [
                Row([change.option, change.fit.needed, change.fit.share, verdict_of(change.fit)]) for change in changes
            ]
            tables.append(Table("What would make it fit", CHANGE_COLUMNS, rows, notes=said([remark]), name="changes"))
        return Report(data, tables, warnings=warned(preset, warnings)).of(preset.target)


def _sequences(found: Fitting) -> str:
    return "sequences at once (--batch)" if found.memory.states.phase == "training" else "users at once (--users)"


def _notes(found: Fitting) -> list[str]:
    """What the numbers are under."""
    fit, use = found.fit, found.memory.states
    nominal = "; of the nominal memory: its usable share is not known" if fit.nominal else ""
    notes = [
        "each of the largest numbers with the others as given",
        f"tight: more than {units.percent(TIGHT, 0)} of the capacity{nominal}",
    ]
    context = use.full_context
    if context is not None and found.seq > context:
        notes.append(f"the model was made for sequences of up to {plural(context, 'token')}")
    return notes


def _fit_data(fit: Fit) -> dict[str, Any]:
    return {
        "verdict": fit.verdict,
        "device_bytes": fit.needed,
        "usable_bytes": fit.capacity,
        "left_bytes": fit.left_bytes,
    }


def _changes_data(changes: Sequence[Change]) -> list[dict[str, Any]]:
    return [
        {"option": change.option, "device_bytes": change.fit.needed, "verdict": change.fit.verdict}
        for change in changes
    ]


def _data(preset: Preset, found: Fitting) -> dict[str, Any]:
    """Bytes as exact integers."""
    fit, training = found.fit, found.memory.settings.phase == "training"
    return {
        "model": model_data(preset),
        "workload": workload_data(found.memory),
        "execution": execution_data(found.memory),
        "hardware": fit.hardware.name,
        **_fit_data(fit),
        "largest": {
            "batch": found.batch if training else None,
            "seq": found.seq,
            "users": None if training else found.batch,
        },
        "changes": _changes_data(found.changes),
        "memory": device_data(found.memory.device),
    }
