"""`llmcalc memory` on many devices: what each rank holds, who holds the most, and what ranks send each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from .. import units
from ..accelerator import Fit
from ..frameworks.launch.record import Launch
from ..frameworks.ranks import Cluster, RankMemory
from ..parallel.layout import stages
from ..sources.preset import Preset
from ..workload.expert_capacity import CAPACITY, DROPLESS
from . import bars, palette
from .bars import Bar
from .document import Column, Report, Row, Table, said
from .memory import (
    KIND_NAMES,
    PHASE_COLUMNS,
    PHASE_NAMES,
    device_data,
    execution_data,
    fits_data,
    fits_table,
    phase_rows,
    run_text,
    untested_notes,
    workload_data,
)
from .notes import plural, too_long, warned
from .share import layout_text
from .summary import model_data

PART_COLUMNS = (
    Column("part", "item", justify="left"),
    Column("bytes", units.GIB.name, units.GIB.write),
    Column("share", "share", units.percent),
    Column("bar", "", bars.share, justify="left", bar=True),
)


def _in_steps(layers: str) -> str:
    """`0, 4, …, 28` for chunks of a stage that are evenly spaced."""
    chunks = layers.split(", ")
    starts = [int(chunk.partition("–")[0]) for chunk in chunks if chunk]
    even = len({b - a for a, b in pairwise(starts)}) == 1
    return f"{chunks[0]}, {chunks[1]}, …, {chunks[-1]}" if even and len(chunks) > 3 else layers


RANK_COLUMNS = (
    Column("rank", "rank"),
    Column("stage", "stage"),
    Column("layers", "layers", justify="left", brief=_in_steps),
    Column("peak_bytes", "peak", units.GIB.write),
    Column("after_step_bytes", "after step", units.GIB.write),
    Column("reserved_bytes", "reserved", units.GIB.write),
    Column("device_bytes", "required", units.GIB.write),
)

HELD = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations",
    "temporary": "temporary",
    "communication": "buffers",
    "cache": "cache",
    "overhead": "other",
}
"""Kind of memory → its name over a column."""

SENT_COLUMNS = (
    Column("group", "with", justify="left"),
    Column("ranks", "ranks"),
    Column("kind", "what", justify="left"),
    Column("count", "messages", units.exact),
    Column("buffer_bytes", "largest", units.GIB.write),
    Column("wire_bytes", "sent", units.GIB.write),
)

KINDS = {
    "all_reduce": "sums for all",
    "all_gather": "gathers",
    "reduce_scatter": "sums, a part each",
    "all_to_all": "exchanges",
    "send": "sends",
}
"""Kind of message → its name in tables."""


def report(
    preset: Preset, found: Cluster, fits: Sequence[Fit], assumed: str = "", launched: Launch | None = None
) -> Report:
    """The answer as data and as tables: the rank that takes the most, every rank that differs, and the accelerators.

    assumed: the accelerator whose runtime was taken, where none was named. launched: the file that starts the run.
    """
    one, peak, layout = found.one, found.device_rank, found.layout
    use = one.states
    warnings = too_long(use.count.spec, use.workload)
    warnings += untested_notes(peak.device)
    answer = f"{units.GIB.write(peak.device.device_bytes)} {units.GIB.name} required by rank {peak.rank}"
    aside = f"{run_text(use)}, {plural(layout.world, 'device')}: {layout_text(layout)}"
    notes = said([*warnings, *_notes(found, assumed), *(launched.notes if launched is not None else ())])
    parts = Table(preset.display, PART_COLUMNS, _part_rows(peak), aside, notes, answer, name="parts")
    columns = RANK_COLUMNS if found.trains else [_after_pass(one) for one in RANK_COLUMNS]
    ranks = Table(f"By rank, in {units.GIB.name}", columns, _rank_rows(found), name="ranks")
    phases = Table(f"Over time on rank {peak.rank}", PHASE_COLUMNS, phase_rows(peak.device), name="phases")
    sent = Table(
        f"Sent by rank {peak.rank} in a step, in {units.GIB.name}",
        SENT_COLUMNS,
        _sent_rows(found),
        name="communication",
    )
    fitting = fits_table(fits, f"Rank {peak.rank} on one accelerator, in {units.GIB.name}")
    return Report(
        data(preset, found, fits, launched),
        [parts, ranks, *_held(found), phases, *([sent] if sent.rows else []), fitting],
        warnings=warned(preset, warnings),
    ).of(preset.target)


def data(preset: Preset, found: Cluster, fits: Sequence[Fit], launched: Launch | None) -> dict[str, Any]:
    """Bytes as exact integers.

    What is allocated is that of the rank that allocates most; what a device must have, of the one that needs most.
    """
    layers, most, allocated = _layers(found), device_data(found.device_rank.device), device_data(found.peak_rank.device)
    workload, execution = workload_data(found.one), execution_data(found.one, found.attention)
    if found.trains:
        own = found.framework.document(found.run)
        workload, execution = workload | own.get("workload", {}), execution | own.get("execution", {})
    return {
        "model": model_data(preset),
        "workload": workload,
        "execution": execution,
        "layout": found.layout.data(),
        "framework": {"name": found.framework.name, "version": found.version or None},
        "launch": None
        if launched is None
        else {
            "file": launched.where,
            "kind": launched.kind,
            "env": dict(launched.env),
            "ignored": list(launched.ignored),
            "unknown": dict(launched.unknown),
            "notes": list(launched.notes),
        },
        "memory": {
            **allocated,
            **{name: most[name] for name in ("reserved_bytes", "device_bytes", "terms")},
            "reserved_band": None if found.reserved_band is None else list(found.reserved_band),
            "peak_rank": found.peak_rank.rank,
            "device_rank": found.device_rank.rank,
            "by_rank": [
                {
                    "rank": one.rank,
                    "stage": one.stage,
                    "layers": layers[one.stage],
                    "peak_bytes": one.device.peak_bytes,
                    "after_step_bytes": one.device.after_step_bytes,
                    "reserved_bytes": one.device.reserved_bytes,
                    "device_bytes": one.device.device_bytes,
                    "by_kind": dict(one.device.by_kind),
                }
                for one in found.by_rank
            ],
            "parameters": found.one.states.count.total,
        },
        "communication": None
        if found.messages is None
        else [
            {
                "group": one.group,
                "ranks": one.ranks,
                "kind": one.kind,
                "count": one.count,
                "buffer_bytes": one.bytes,
                "wire_bytes": one.count * one.wire_bytes,
            }
            for one in found.messages
        ],
        "fits": fits_data(fits),
    }


def _after_pass(column: Column) -> Column:
    return column._replace(title="after") if column.key == "after_step_bytes" else column


def _sent_rows(found: Cluster) -> list[Row]:
    """Messages of one kind with one group together, those of a group one after the other."""
    sums: dict[tuple[str, int, str], list[int]] = {}
    for one in found.messages or ():
        line = sums.setdefault((one.group, one.ranks, one.kind), [0, 0, 0])
        line[0] += one.count
        line[1] = max(line[1], one.bytes)
        line[2] += one.count * one.wire_bytes
    groups = list(dict.fromkeys((group, ranks) for group, ranks, _ in sums))
    ordered = sorted(sums.items(), key=lambda one: groups.index(one[0][:2]))
    return [Row([group, ranks, KINDS[kind], *line]) for (group, ranks, kind), line in ordered]


def _part_rows(peak: RankMemory) -> list[Row]:
    """What stands at the peak of the rank that takes the most."""
    device = peak.device

    def row(name: str, size: int, strong: bool = False, kind: str = "") -> Row:
        part = size / device.device_bytes
        return Row([name, size, part, None if strong else Bar(part, palette.KINDS.get(kind, palette.OTHER))], 0, strong)

    rows = [row(KIND_NAMES[kind], size, kind=kind) for kind, size in device.by_kind.items() if size]
    rows.append(row(f"peak of the {PHASE_NAMES[device.peak_at.phase]}", device.peak_bytes, strong=True))
    rows += [row(f"{term.name} (estimate)", term.bytes) for term in device.terms if term.status == "estimate"][-2:]
    return [*rows, row("total", device.device_bytes, strong=True)]


def _layers(found: Cluster) -> dict[int, list[list[int]]]:
    """Stage of a rank → the first and the last layer of each of its chunks; nothing of a chunk without layers."""
    layers = sum(stack.num_hidden_layers for _, stack in found.spec.stacks())
    own: dict[int, list[list[int]]] = {}
    for stage in stages(found.layout, layers):
        own.setdefault(stage.rank, []).append([stage.layers[0], stage.layers[-1]] if stage.layers else [])
    return own


def _rank_rows(found: Cluster) -> list[Row]:
    layers = _layers(found)
    return [
        Row(
            [
                one.rank,
                one.stage,
                ", ".join("–".join(map(str, dict.fromkeys(ends))) for ends in layers[one.stage]),
                one.device.peak_bytes,
                one.device.after_step_bytes,
                one.device.reserved_bytes,
                one.device.device_bytes,
            ]
        )
        for one in found.by_rank
    ]


def _held(found: Cluster) -> list[Table]:
    """What each rank's peak is made of, where there are ranks that differ."""
    if found.layout.pp == 1:
        return []
    kinds = [kind for kind in HELD if any(one.device.by_kind.get(kind, 0) for one in found.by_rank)]
    columns = [Column("rank", "rank"), *(Column(kind, HELD[kind], units.GIB.write) for kind in kinds)]
    rows = [Row([one.rank, *(one.device.by_kind.get(kind, 0) for kind in kinds)]) for one in found.by_rank]
    return [Table(f"Held by each rank at its peak, in {units.GIB.name}", columns, rows, name="kinds")]


def _serving_notes(found: Cluster) -> list[str]:
    """What holds of passes on several devices."""
    layout, tensors = found.layout, found.device_rank.device.terms[0]
    return [
        *([f"{tensors.status}: {tensors.witness}"] if tensors.status == "estimate" else []),
        *(["logits stay divided over the vocabulary"] if layout.tp > 1 else []),
        *(["--batch: sequences of each replica"] if layout.dp > 1 else []),
    ]


def _notes(found: Cluster, assumed: str) -> list[str]:
    name = found.framework.title
    version = f" of {found.version}" if found.version else ""
    notes = [f"kernels and buffers of {name}{version}; ranks that are not listed hold what those of their stage do"]
    if not found.trains:
        notes = [*_serving_notes(found), *notes]
    capped = getattr(found.own, "moe_expert_capacity_factor", None) or found.settings.moe not in (None, DROPLESS)
    if found.trains and found.layout.ep > 1 and not capped:
        uneven = "" if found.own is not None else f"; --moe {CAPACITY}1.5 for ranks that get 1.5 times as many"
        notes.append(f"the experts of each rank get an even share of the rows{uneven}")
    if found.attention == "eager":
        notes.insert(0, "eager attention keeps all scores; --attn-implementation flash keeps none")
    if found.reserved_band is not None:
        band = " to ".join(units.GIB.write(one) for one in sorted(found.reserved_band))
        notes.append(f"reserved: {band} {units.GIB.name} by the allocator's setting (--allocator); here with segments")
    if found.peak_rank.rank != found.device_rank.rank:
        most = f"{units.GIB.write(found.peak_rank.device.peak_bytes)} {units.GIB.name}"
        notes.append(f"rank {found.peak_rank.rank} allocates the most, {most}, and needs less with its free blocks")
    if assumed:
        notes.append(f"runtime of an {assumed}; --hardware for another one")
    return notes
