"""`llmcalc fit`: whether a run fits on an accelerator, how much of it would, and what would make it fit."""

from __future__ import annotations

from typing import Any

from .. import units
from ..costs.resident import TIGHT
from ..device.cluster import attention_of
from ..sources.preset import Preset
from ..studies.fit import Fitting
from ..studies.fit_devices import DeviceFitting
from .cluster import FRAMEWORK_NAMES
from .document import Column, Report, Row, Table, said
from .memory import device_data, execution_data, run_text, verdict_of, workload_data
from .notes import plural, too_long, warned
from .share import layout_text
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
    fit, memory = found.fit, found.memory
    use = memory.states
    warnings = too_long(memory.spec, use.workload) + list(() if fit.hardware.sources else fit.hardware.notes)
    answer = f"{VERDICTS[fit.verdict]} on {fit.hardware.title}"
    aside = (
        f"{run_text(use)}: {units.GIB.write(fit.needed)} of {units.GIB.write(fit.capacity)} {units.GIB.name} "
        f"({units.percent(fit.share)})"
    )
    rows = [
        Row([_sequences(found), found.batch, use.workload.batch]),
        Row(["tokens of each sequence (--seq)", found.seq, use.workload.seq]),
    ]
    notes = said([*warnings, *_notes(found)])
    largest = Table(preset.display, LARGEST_COLUMNS, rows, aside, notes, answer, name="largest")
    tables = [largest]
    if found.changes:
        changes = [
            Row([change.option, change.fit.needed, change.fit.share, verdict_of(change.fit)])
            for change in found.changes
        ]
        note = "changes of kernels, recomputation and chunks leave results as they are; formats and adapters do not"
        tables.append(Table("What would make it fit", CHANGE_COLUMNS, changes, notes=[note], name="changes"))
    return Report(_data(preset, found), tables, warnings=warned(preset, warnings)).of(preset.target)


def devices_report(preset: Preset, found: DeviceFitting) -> Report:
    """The answer for many devices: the best layout, the fewest devices, the largest numbers and the changes."""
    planned, fit, best = found.planned, found.fit, found.best
    use = found.memory.states
    warnings = too_long(found.memory.spec, use.workload) + list(() if fit.hardware.sources else fit.hardware.notes)
    answer = f"{VERDICTS[fit.verdict]} on {plural(planned.devices, fit.hardware.title)}"
    aside = (
        f"{run_text(use)}, {planned.global_batch:,} sequences a step, {layout_text(best.layout)}: "
        f"{units.GIB.write(fit.needed)} of {units.GIB.write(fit.capacity)} {units.GIB.name} "
        f"({units.percent(fit.share)})"
    )
    rows = [Row(["fewest devices (--devices)", found.needed, planned.devices])]
    if fit.verdict != "no":
        rows += [
            Row(["sequences of a micro-batch (--batch)", found.batch, use.workload.batch]),
            Row(["tokens of each sequence (--seq)", found.seq, use.workload.seq]),
        ]
    name = FRAMEWORK_NAMES[planned.framework]
    notes = said(
        [
            *warnings,
            f"kernels and buffers of {name}; the layout with the best place of {planned.plan.tried:,} (llmcalc plan)",
            "fewest: of this number, its halves and its doubles; the largest of each with this layout, the others as "
            "given",
        ]
    )
    tables = [Table(preset.display, LARGEST_COLUMNS, rows, aside, notes, answer, name="largest")]
    if found.changes:
        changes = [
            Row([change.option, change.fit.needed, change.fit.share, verdict_of(change.fit)])
            for change in found.changes
        ]
        tables.append(Table("What would make it fit", CHANGE_COLUMNS, changes, name="changes"))
    data = {
        "model": model_data(preset),
        "workload": workload_data(found.memory),
        "execution": execution_data(found.memory, attention_of(found.memory, planned.framework)),
        "hardware": fit.hardware.name,
        "devices": planned.devices,
        "framework": planned.framework,
        "layout": best.layout.data(),
        "verdict": fit.verdict,
        "device_bytes": fit.needed,
        "usable_bytes": fit.capacity,
        "left_bytes": fit.left_bytes,
        "needed_devices": found.needed,
        "needed_layout": None if found.fewest is None else found.fewest.layout.data(),
        "largest": {"batch": found.batch, "seq": found.seq, "users": None},
        "changes": [
            {"option": change.option, "device_bytes": change.fit.needed, "verdict": change.fit.verdict}
            for change in found.changes
        ],
    }
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


def _data(preset: Preset, found: Fitting) -> dict[str, Any]:
    """Bytes as exact integers."""
    fit, training = found.fit, found.memory.settings.phase == "training"
    return {
        "model": model_data(preset),
        "workload": workload_data(found.memory),
        "execution": execution_data(found.memory),
        "hardware": fit.hardware.name,
        "verdict": fit.verdict,
        "device_bytes": fit.needed,
        "usable_bytes": fit.capacity,
        "left_bytes": fit.left_bytes,
        "largest": {
            "batch": found.batch if training else None,
            "seq": found.seq,
            "users": None if training else found.batch,
        },
        "changes": [
            {"option": change.option, "device_bytes": change.fit.needed, "verdict": change.fit.verdict}
            for change in found.changes
        ],
        "memory": device_data(found.memory.device),
    }
