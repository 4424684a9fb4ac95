"""The report of `llmcalc memory`: the bytes of a run by kind and over time, and the accelerators on which it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .. import units
from ..accelerator import Fit
from ..device_memory.device_memory import DeviceMemory, Point
from ..device_memory.estimate import Memory
from ..device_memory.static import MemoryUse
from ..sources.preset import Preset
from . import bars, palette
from .bars import Bar
from .document import Column, Report, Row, Table, without_repetitions
from .memory_data import memory_data
from .memory_notes import memory_notes, settings_text, stored_weights_notes, term_name, untested_notes
from .notes import too_long_notes, warnings_of_notes

COLUMNS = (
    Column("part", "item", justify="left"),
    Column("dtype", "dtype"),
    Column("bytes", units.GIB.name, units.GIB.write),
    Column("share", "share", units.percent),
    Column("bar", "", bars.share_bar, justify="left", bar=True),
)

LONGEST_PATH = 24
"""Largest number of characters of a module's path in a table."""


def _shorten_path(path: str) -> str:
    """Shortens a long path between its layer and its end: `layers.31.….core`."""
    if len(path) <= LONGEST_PATH:
        return path
    *parents, name = path.split(".")
    while len(parents) > 1 and len(".".join((*parents, "…", name))) > LONGEST_PATH:
        parents.pop()
    return ".".join((*parents, "…", name))


PHASE_COLUMNS = (
    Column("phase", "phase", justify="left"),
    Column("bytes", f"most, {units.GIB.name}", units.GIB.write),
    Column("node", "where", justify="left", brief=_shorten_path),
    Column("course", "from start to end", justify="left"),
)

FIT_COLUMNS = (
    Column("hardware", "accelerator", justify="left"),
    Column("usable_bytes", "capacity", units.GIB.write),
    Column("share", "needed", units.percent),
    Column("left_bytes", "headroom", units.GIB.write),
    Column("verdict", "verdict", justify="left", verdict=True),
)

IN_PEAK = ("tensors", "cuBLAS workspaces", "rounding to blocks")
"""The terms whose sum is the peak; the others come on top of it."""


KIND_NAMES = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "activations": "activations kept",
    "temporary": "temporary",
    "communication": "communication",
    "cache": "KV cache",
    "overhead": "workspaces, rounding",
}
"""Kind of memory → its name in tables."""

PHASE_NAMES = {
    "prefill": "prefill",
    "decode": "decoding step",
    "forward": "forward pass",
    "backward": "backward pass",
    "step": "optimizer's step",
}
"""Phase of a run → its name in a sentence."""


def report(preset: Preset, memory: Memory, accelerator_fits: Sequence[Fit], assumed_accelerator: str = "") -> Report:
    """Returns the report: tables of the kinds of memory, of phases and of accelerators.

    assumed_accelerator: the accelerator whose runtime is assumed, where none was named.
    """
    memory_use, device = memory.states, memory.device
    warnings = too_long_notes(memory_use.count.spec, memory_use.workload)
    warnings += [remark for fit in accelerator_fits if not fit.hardware.sources for remark in fit.hardware.notes]
    warnings += untested_notes(device) + stored_weights_notes(preset, memory_use)
    answer_text = f"{units.GIB.write(device.device_bytes)} {units.GIB.name} required"
    answer_text += verdict_text(accelerator_fits)
    parameters = "" if memory_use.phase == "training" else f", {units.count(memory_use.count.total)} parameters"
    settings_line = settings_text(memory, memory.attention) + parameters
    notes = without_repetitions([*warnings, *memory_notes(preset, memory, assumed_accelerator)])
    columns, rows = (
        phase_parts(device, memory_use) if memory_use.phase == "training" else kind_parts(device, memory_use)
    )
    parts_table = Table(preset.display, columns, rows, settings_line, notes, answer_text, name="parts")
    phases = Table("Over time", PHASE_COLUMNS, phase_rows(device), name="phases")
    fits_section = accelerators_table(accelerator_fits, f"On one accelerator, in {units.GIB.name}")
    return Report(
        memory_data(preset, memory, accelerator_fits),
        [parts_table, phases, fits_section],
        warnings=warnings_of_notes(preset, warnings),
    ).for_target(preset.target)


VERDICTS = {"fits": "fits on", "tight": "is tight on", "no": "does not fit on"}
"""Verdict → the words before an accelerator's name in the first line."""


def verdict_text(accelerator_fits: Sequence[Fit]) -> str:
    """Writes whether a run fits on the accelerator that was named; empty for none and for several."""
    if len(accelerator_fits) != 1:
        return ""
    return f": {VERDICTS[accelerator_fits[0].verdict]} {accelerator_fits[0].hardware.title}"


def estimated_parts(device: DeviceMemory, *, of_runtime: bool = True) -> list[tuple[str, int]]:
    """Returns the names and bytes of the estimated terms that allocator and runtime add to the tensors.

    of_runtime: false for those that are among the tensors, such as a reference model.
    """
    estimates = [
        term
        for term in device.terms
        if term.status == "estimate" and term.name not in IN_PEAK and term.of_runtime is of_runtime
    ]
    return [(f"{term_name(term)} (estimate)", term.bytes) for term in estimates]


def accelerators_table(accelerator_fits: Sequence[Fit], title: str) -> Table:
    """Returns a table that says whether a run fits on each accelerator."""
    rows = [
        Row([fit.hardware.name, fit.capacity, fit.share, fit.left_bytes, verdict_of(fit)]) for fit in accelerator_fits
    ]
    notes = verdict_notes(accelerator_fits)
    if any(fit.left_bytes < 0 for fit in accelerator_fits):
        notes.append("headroom: negative for a shortfall")
    if any(fit.nominal for fit in accelerator_fits):
        title = f"{title}; *: of the nominal memory"
    first_fitting = next(
        (i for i, fit in enumerate(accelerator_fits) if fit.verdict != "no"), len(accelerator_fits) - 1
    )
    return Table(
        title,
        FIT_COLUMNS,
        rows,
        notes=["; ".join(notes)] if notes else [],
        name="fits",
        sooner=True,
        centre=first_fitting,
    )


def verdict_notes(fits: Sequence[Fit]) -> list[str]:
    """Returns the notes that explain `tight` and `*`, if a verdict shows them."""
    notes = []
    if any(fit.verdict == "tight" for fit in fits):
        notes.append("tight: fits only without the estimated fragmentation")
    if any(fit.nominal for fit in fits):
        notes.append("*: of the nominal memory, since the usable memory is not known")
    return notes


def verdict_of(fit: Fit) -> str:
    """Writes `fits`, `tight` or `no`, with `*` if the nominal memory is compared, as the usable one is unknown."""
    return f"{fit.verdict}*" if fit.nominal else fit.verdict


def kind_parts(device: DeviceMemory, device_use: MemoryUse | None = None) -> tuple[list[Column], list[Row]]:
    """Returns the kinds of memory at the peak, and the overhead of allocator and runtime, as columns and rows.

    device_use: the run on one device, whose number formats are a column; None (default) for a rank.
    """

    def kind_row(
        name: str, dtype: str, byte_count: int, depth: int = 0, strong: bool = False, memory_kind: str = ""
    ) -> Row:
        peak_fraction = byte_count / device.device_bytes
        bar = None if depth or strong else Bar(peak_fraction, palette.KINDS.get(memory_kind, palette.OTHER))
        formats_cell = [] if device_use is None else [units.short_dtype(dtype) if dtype else None]
        return Row([name, *formats_cell, byte_count, peak_fraction, bar], depth, strong, is_sum=strong)

    formats = {} if device_use is None else {"weights": device_use.dtype, "cache": device_use.kv_dtype}
    rows: list[Row] = []
    for memory_kind, byte_count in device.by_kind.items():
        if byte_count:
            name, dtype = KIND_NAMES[memory_kind], formats.get(memory_kind, "")
            if memory_kind == "weights" and device_use is not None and device_use.quantized is not None:
                name, dtype = f"weights ({device_use.quantized.scheme.label})", ""
            rows.append(kind_row(name, dtype, byte_count, memory_kind=memory_kind))
            rows += _weight_rows(device_use, kind_row) if memory_kind == "weights" and device_use is not None else []
    among_tensors = estimated_parts(device, of_runtime=False)
    rows += [kind_row(f"of these: {name}", "", byte_count, 1) for name, byte_count in among_tensors]
    rows.append(kind_row(f"peak of the {PHASE_NAMES[device.peak_at.phase]}", "", device.peak_bytes, strong=True))
    rows += [kind_row(name, "", byte_count) for name, byte_count in estimated_parts(device)]
    columns = [column for column in COLUMNS if column.key != "dtype" or device_use is not None]
    return columns, [*rows, kind_row("total", "", device.device_bytes, strong=True)]


def _weight_rows(memory_use: MemoryUse, row: Callable[..., Row]) -> list[Row]:
    """Returns rows of the parts of quantized weights."""
    quantized_size = memory_use.quantized
    if quantized_size is None:
        return []
    formats = {"unconverted": quantized_size.dtype}
    return [
        row(name, formats.get(name, ""), part_bytes, 1)
        for name, part_bytes in quantized_size.by_part.data().items()
        if part_bytes
    ]


def phase_parts(device: DeviceMemory, device_use: MemoryUse | None = None) -> tuple[list[Column], list[Row]]:
    """Returns the kinds of memory at the peak of each training phase, as columns and rows.

    device_use: the run on one device, with the formats and the optimizer's states; None (default) for a rank.
    The allocator's rounding and free blocks and the context are those of the highest phase.
    """
    phases = {phase: bytes_by_kind for phase, bytes_by_kind in device.moments.items() if bytes_by_kind}
    phases[device.peak_at.phase] = device.by_kind
    columns = [
        Column("part", f"{units.GIB.name} at the peak of each phase", justify="left"),
        *(Column(f"{phase}_bytes", phase, units.GIB.write) for phase in phases),
    ]

    def cells_at_peaks(byte_count: int) -> list[int | None]:
        return [byte_count if phase == device.peak_at.phase else None for phase in phases]

    rows: list[Row] = []
    for memory_kind in device.by_kind:
        bytes_of_phases = [bytes_by_kind.get(memory_kind, 0) for bytes_by_kind in phases.values()]
        if any(bytes_of_phases):
            name = KIND_NAMES[memory_kind] if device_use is None else _kind_text(device_use, memory_kind)
            rows.append(Row([name, *(byte_count or None for byte_count in bytes_of_phases)]))
            if memory_kind == "optimizer" and device_use is not None:
                rows += _optimizer_rows(device_use, list(phases.values()))
    among_tensors = estimated_parts(device, of_runtime=False)
    rows += [Row([f"of these: {name}", *(byte_count for _ in phases)], 1) for name, byte_count in among_tensors]
    rows.append(
        Row(["peak", *(sum(bytes_by_kind.values()) for bytes_by_kind in phases.values())], strong=True, is_sum=True)
    )
    rows += [Row([name, *cells_at_peaks(byte_count)]) for name, byte_count in estimated_parts(device)]
    rows.append(Row(["required", *cells_at_peaks(device.device_bytes)], strong=True, is_sum=True))
    return columns, [*rows, *([Row(["on the host", *cells_at_peaks(device.host_bytes)])] if device.host else [])]


def _kind_text(memory_use: MemoryUse, memory_kind: str) -> str:
    """Returns the name of a kind of memory in training, with the number format or optimizer name."""
    name = KIND_NAMES[memory_kind]
    if memory_kind == "weights" and memory_use.adapters is not None:
        return "weights and adapters"
    formats = {"weights": memory_use.dtype, "gradients": memory_use.grad_dtype}
    if memory_kind == "optimizer" and memory_use.optimizer is not None:
        return f"optimizer ({memory_use.optimizer.name})"
    return f"{name} ({units.short_dtype(formats[memory_kind])})" if formats.get(memory_kind) else name


def _optimizer_rows(memory_use: MemoryUse, phases: Sequence[Mapping[str, int]]) -> list[Row]:
    """Returns rows of master weights and optimizer states, which exist in all phases; none for paged states.

    phases: bytes by kind, by phase.
    """
    optimizer_state = memory_use.optimizer
    changes = any(bytes_by_kind.get("optimizer") != phases[0].get("optimizer") for bytes_by_kind in phases)
    if optimizer_state is None or optimizer_state.paged or changes:  # paged states are beside torch's tensors
        return []
    optimizer_parts = [("master weights", "float32", memory_use.master_weights)] if memory_use.has_master else []
    optimizer_parts += [
        (name, "" if optimizer_state.dtype == "uint8" else optimizer_state.dtype, byte_count)
        for name, byte_count in optimizer_state.states.items()
        if name != "step"
    ]
    names = [f"{name} ({units.short_dtype(dtype)})" if dtype else name for name, dtype, _ in optimizer_parts]
    return [
        Row([name, *(byte_count for _ in phases)], 1)
        for name, (_, _, byte_count) in zip(names, optimizer_parts, strict=True)
    ]


def phase_rows(device: DeviceMemory) -> list[Row]:
    """Returns one row per phase: its peak in bytes, the module of the peak, and a bar of memory over time."""
    rows = []
    for phase in device.moments:
        memory_points = [memory_point for memory_point in device.timeline if memory_point.phase == phase]
        highest_point = max(memory_points, key=lambda memory_point: memory_point.bytes)
        point_bytes = [memory_point.bytes for memory_point in _leaf_points(memory_points)]
        rows.append(
            Row(
                [
                    PHASE_NAMES[phase],
                    highest_point.bytes,
                    highest_point.node or "the model",
                    bars.timeline_bar(point_bytes, device.peak_bytes),
                ]
            )
        )
    rows.append(Row(["after", device.after_step_bytes, None, None]))
    return rows


def _leaf_points(memory_points: Sequence[Point]) -> Sequence[Point]:
    """Returns the points of modules without children in execution order."""
    parent_names = {memory_point.node.rpartition(".")[0] for memory_point in memory_points}
    for node_path in list(parent_names):
        while node_path := node_path.rpartition(".")[0]:
            parent_names.add(node_path)
    return [
        memory_point for memory_point in memory_points if memory_point.node and memory_point.node not in parent_names
    ] or memory_points
