"""The report of `llmcalc memory`: the bytes of a run by kind and over time, and the accelerators on which it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from .. import units
from ..accelerator import MemoryFit
from ..device_memory.device_memory import DeviceMemory, ModulePeak
from ..device_memory.estimate import Memory
from ..device_memory.static import StaticMemory
from ..sources.preset import Preset
from . import bars, palette
from .bars import TextBar
from .document import Column, Report, Row, Table, row, without_repetitions
from .memory_data import memory_data
from .memory_notes import (
    displayed_term_name,
    llama_cpp_note,
    memory_notes,
    settings_text,
    stored_weights_notes,
    untested_notes,
)
from .notes import too_long_notes, warnings_of_notes

COLUMNS = (
    Column("part", "item", justify="left"),
    Column("dtype", "dtype"),
    Column("bytes", units.GIB.name, units.GIB.write),
    Column("share", "share", units.percent),
    Column("bar", "", bars.share_bar, justify="left", is_bar=True),
)

LONGEST_PATH = 24
"""Largest number of characters of a module's path in a table."""


def _shorten_path(module_path: str) -> str:
    """Shortens a long path between its layer and its end: `layers.31.….core`."""
    if len(module_path) <= LONGEST_PATH:
        return module_path
    *parent_names, last_name = module_path.split(".")
    while len(parent_names) > 1 and len(".".join((*parent_names, "…", last_name))) > LONGEST_PATH:
        parent_names.pop()
    return ".".join((*parent_names, "…", last_name))


PHASE_COLUMNS = (
    Column("phase", "phase", justify="left"),
    Column("bytes", f"most, {units.GIB.name}", units.GIB.write),
    Column("node", "where", justify="left", shorten=_shorten_path),
    Column("course", "from start to end", justify="left"),
)

FIT_COLUMNS = (
    Column("hardware", "accelerator", justify="left"),
    Column("usable_bytes", "capacity", units.GIB.write),
    Column("share", "needed", units.percent),
    Column("left_bytes", "headroom", units.GIB.write),
    Column("verdict", "verdict", justify="left", is_verdict=True),
)

TERMS_IN_PEAK = ("tensors", "cuBLAS workspaces", "rounding to blocks")
"""Names of the memory terms whose sum is the peak; other terms are added to the peak."""


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


def report(
    preset: Preset,
    run_memory: Memory,
    accelerator_fits: Sequence[MemoryFit],
    assumed_accelerator: str = "",
    engine_fits: Mapping[str, MemoryFit] = MappingProxyType({}),
) -> Report:
    """Returns the report: tables of the kinds of memory, of phases and of accelerators.

    assumed_accelerator: the accelerator whose runtime is assumed, where none was named.
    engine_fits: accelerator's name → the verdict by the buffers of llama.cpp, where it usually runs the weights;
        default none.
    """
    memory_use, device_memory = run_memory.states, run_memory.device
    warnings = too_long_notes(memory_use.parameter_count.spec, memory_use.workload)
    warnings += [note_text for fit in accelerator_fits if not fit.hardware.sources for note_text in fit.hardware.notes]
    warnings += untested_notes(device_memory) + stored_weights_notes(preset, memory_use)
    named_hardware = accelerator_fits[0].hardware if len(accelerator_fits) == 1 else None
    engine_fit = None
    if engine_fits and (run_memory.has_gguf_weights or len(engine_fits) == len(accelerator_fits)):
        engine_fit = max(engine_fits.values(), key=lambda accelerator_fit: accelerator_fit.needed_bytes)
    engine_note = llama_cpp_note(run_memory, preset.target, named_hardware, engine_fit)
    required_bytes = device_memory.device_bytes if engine_fit is None else engine_fit.needed_bytes
    kernels_text = "" if engine_fit is None else " under llama.cpp"
    if engine_note and engine_fit is None:
        kernels_text = " under torch's kernels"
    answer_text = f"{units.GIB.write(required_bytes)} {units.GIB.name} required{kernels_text}"
    answer_text += verdict_text(accelerator_fits, required_bytes)
    parameters_text = (
        "" if memory_use.phase == "training" else f", {units.count(memory_use.parameter_count.total)} parameters"
    )
    settings_line = settings_text(run_memory, run_memory.attention) + parameters_text
    if engine_fit is not None:
        settings_line += f"; below: under torch's kernels, {units.memory(device_memory.device_bytes)}"
    run_notes = memory_notes(
        preset, run_memory, assumed_accelerator, engine_note, has_engine_buffers=engine_fit is not None
    )
    notes = without_repetitions([*warnings, *run_notes])
    table_columns, table_rows = (
        phase_columns_and_rows(device_memory, memory_use)
        if memory_use.phase == "training"
        else memory_kind_columns_and_rows(device_memory, memory_use)
    )
    memory_kinds_table = Table(
        preset.display, table_columns, table_rows, settings_line, notes, answer_text, name="parts"
    )
    phase_table = Table("Over time", PHASE_COLUMNS, phase_rows(device_memory), name="phases")
    fits_table = accelerators_table(accelerator_fits, f"On one accelerator, in {units.GIB.name}", engine_fits)
    tables = [memory_kinds_table, phase_table, fits_table]
    return Report(
        memory_data(preset, run_memory, accelerator_fits), tables, warnings=warnings_of_notes(preset, warnings)
    ).with_target(preset.target)


VERDICT_TEXTS = {"fits": "fits on", "tight": "is tight on", "no": "does not fit on"}
"""Verdict → the words before an accelerator's name in the first line of an answer."""


def verdict_text(accelerator_fits: Sequence[MemoryFit], required_bytes: int) -> str:
    """Returns text on whether a run fits on the single named accelerator; empty if none or several are named.

    required_bytes: the bytes that the answer states. Paged states beyond the accelerator's memory lie on the host.
    """
    if len(accelerator_fits) != 1:
        return ""
    moved_bytes = required_bytes - accelerator_fits[0].needed_bytes
    moved_text = f", {units.GIB.write(moved_bytes)} of them paged to the host" if moved_bytes > 0 else ""
    return f"{moved_text}: {VERDICT_TEXTS[accelerator_fits[0].verdict]} {accelerator_fits[0].hardware.title}"


def estimated_parts(device: DeviceMemory, *, includes_runtime: bool = True) -> list[tuple[str, int]]:
    """Returns the names and bytes of the estimated terms that allocator and runtime add to the tensors.

    includes_runtime: false for those that are among the tensors, such as a reference model.
    """
    estimated_terms = [
        estimated_term
        for estimated_term in device.terms
        if estimated_term.status == "estimate"
        and estimated_term.name not in TERMS_IN_PEAK
        and estimated_term.belongs_to_runtime is includes_runtime
    ]
    return [(f"{displayed_term_name(memory_term)} (estimate)", memory_term.bytes) for memory_term in estimated_terms]


def accelerators_table(
    accelerator_fits: Sequence[MemoryFit], title: str, engine_fits: Mapping[str, MemoryFit] = MappingProxyType({})
) -> Table:
    """Returns a table that says whether a run fits on each accelerator. engine_fits: as in `report`."""
    table_rows = [
        row(
            accelerator_fit.hardware.name,
            accelerator_fit.capacity_bytes,
            accelerator_fit.used_fraction,
            accelerator_fit.left_bytes,
            fit_verdict_text(accelerator_fit),
        )
        for accelerator_fit in accelerator_fits
    ]
    notes = verdict_notes(accelerator_fits)
    if any(accelerator_fit.left_bytes < 0 for accelerator_fit in accelerator_fits):
        notes.append("headroom: negative for a shortfall")
    if any(accelerator_fit.has_nominal_capacity for accelerator_fit in accelerator_fits):
        title = f"{title}; *: of the nominal memory"
    other_names = [fit.hardware.name for fit in accelerator_fits if fit.hardware.name not in engine_fits]
    if engine_fits and len(engine_fits) <= len(other_names):
        notes.insert(0, f"{', '.join(engine_fits)}: by llama.cpp's buffers, the others by torch's kernels")
    elif engine_fits:
        others_text = f", {', '.join(other_names)} by torch's kernels" if other_names else ""
        notes.insert(0, f"by llama.cpp's buffers{others_text}")
    first_fitting_index = next(
        (fit_index for fit_index, accelerator_fit in enumerate(accelerator_fits) if accelerator_fit.verdict != "no"),
        len(accelerator_fits) - 1,
    )
    return Table(
        title,
        FIT_COLUMNS,
        table_rows,
        notes=["; ".join(notes)] if notes else [],
        name="fits",
        has_priority=True,
        central_row=first_fitting_index,
    )


def verdict_notes(accelerator_fits: Sequence[MemoryFit]) -> list[str]:
    """Returns the notes that explain `tight` and `*`, if a verdict shows them."""
    notes = []
    if any(accelerator_fit.verdict == "tight" for accelerator_fit in accelerator_fits):
        notes.append("tight: fits only without the estimated fragmentation")
    if any(accelerator_fit.has_nominal_capacity for accelerator_fit in accelerator_fits):
        notes.append("*: of the nominal memory, since the usable memory is not known")
    return notes


def fit_verdict_text(accelerator_fit: MemoryFit) -> str:
    """Returns `fits`, `tight` or `no`, with `*` if only the nominal memory of the accelerator is known."""
    return f"{accelerator_fit.verdict}*" if accelerator_fit.has_nominal_capacity else accelerator_fit.verdict


def memory_kind_columns_and_rows(
    device: DeviceMemory, memory_use: StaticMemory | None = None
) -> tuple[list[Column], list[Row]]:
    """Returns the kinds of memory at the peak, and the overhead of allocator and runtime, as columns and rows.

    memory_use: the run on one device, whose number formats are a column; None (default) for a rank.
    """

    def kind_row(
        kind_name: str, dtype: str, byte_count: int, depth: int = 0, is_bold: bool = False, memory_kind: str = ""
    ) -> Row:
        peak_fraction = byte_count / device.device_bytes
        text_bar = None
        if not (depth or is_bold):
            text_bar = TextBar(peak_fraction, palette.MEMORY_KIND_COLOURS.get(memory_kind, palette.OTHER_COLOUR))
        formats_cell = [] if memory_use is None else [units.short_dtype(dtype) if dtype else None]
        return row(
            kind_name, *formats_cell, byte_count, peak_fraction, text_bar, depth=depth, is_bold=is_bold, is_sum=is_bold
        )

    dtype_by_kind = {} if memory_use is None else {"weights": memory_use.dtype, "cache": memory_use.kv_dtype}
    table_rows: list[Row] = []
    for memory_kind, byte_count in device.by_kind.items():
        if byte_count:
            kind_name, dtype = KIND_NAMES[memory_kind], dtype_by_kind.get(memory_kind, "")
            if memory_kind == "weights" and memory_use is not None and memory_use.quantized_size is not None:
                kind_name, dtype = f"weights ({memory_use.quantized_size.scheme.label})", ""
            table_rows.append(kind_row(kind_name, dtype, byte_count, memory_kind=memory_kind))
            table_rows += (
                _weight_rows(memory_use, kind_row) if memory_kind == "weights" and memory_use is not None else []
            )
    allocator_terms = estimated_parts(device, includes_runtime=False)
    table_rows += [kind_row(f"of these: {kind_name}", "", byte_count, 1) for kind_name, byte_count in allocator_terms]
    table_rows.append(kind_row(f"peak of the {PHASE_NAMES[device.peak_at.phase]}", "", device.peak_bytes, is_bold=True))
    table_rows += [kind_row(kind_name, "", byte_count) for kind_name, byte_count in estimated_parts(device)]
    table_columns = [column for column in COLUMNS if column.key != "dtype" or memory_use is not None]
    return table_columns, [*table_rows, kind_row("total", "", device.device_bytes, is_bold=True)]


def _weight_rows(memory_use: StaticMemory, make_row: Callable[..., Row]) -> list[Row]:
    """Returns table rows with the bytes of quantized weights: codes, scales, zero points and unconverted tensors."""
    quantized_size = memory_use.quantized_size
    if quantized_size is None:
        return []
    dtype_by_kind = {"unconverted": quantized_size.dtype}
    return [
        make_row(part_name, dtype_by_kind.get(part_name, ""), part_bytes, 1)
        for part_name, part_bytes in quantized_size.by_part.data().items()
        if part_bytes
    ]


def phase_columns_and_rows(
    device: DeviceMemory, memory_use: StaticMemory | None = None
) -> tuple[list[Column], list[Row]]:
    """Returns the kinds of memory at the peak of each training phase, as columns and rows.

    memory_use: the run on one device, with the formats and the optimizer's states; None (default) for a rank.
    The allocator's rounding and free blocks and the context are those of the highest phase.
    """
    phases = {phase: bytes_by_kind for phase, bytes_by_kind in device.moments.items() if bytes_by_kind}
    phases[device.peak_at.phase] = device.by_kind
    columns = [
        Column("part", f"{units.GIB.name} at the peak of each phase", justify="left"),
        *(Column(f"{phase}_bytes", phase, units.GIB.write) for phase in phases),
    ]

    def peak_cells(byte_count: int) -> list[int | None]:
        return [byte_count if phase == device.peak_at.phase else None for phase in phases]

    table_rows: list[Row] = []
    for memory_kind in device.by_kind:
        bytes_of_phases = [bytes_by_kind.get(memory_kind, 0) for bytes_by_kind in phases.values()]
        if any(bytes_of_phases):
            kind_name = KIND_NAMES[memory_kind] if memory_use is None else _memory_kind_text(memory_use, memory_kind)
            table_rows.append(row(kind_name, *(byte_count or None for byte_count in bytes_of_phases)))
            if memory_kind == "optimizer" and memory_use is not None:
                table_rows += _optimizer_rows(memory_use, list(phases.values()))
    allocator_terms = estimated_parts(device, includes_runtime=False)
    table_rows += [
        row(f"of these: {term_name}", *(term_bytes for _ in phases), depth=1)
        for term_name, term_bytes in allocator_terms
    ]
    table_rows.append(
        row("peak", *(sum(bytes_by_kind.values()) for bytes_by_kind in phases.values()), is_bold=True, is_sum=True)
    )
    table_rows += [row(kind_name, *peak_cells(byte_count)) for kind_name, byte_count in estimated_parts(device)]
    table_rows.append(row("required", *peak_cells(device.device_bytes), is_bold=True, is_sum=True))
    return columns, [*table_rows, *([row("on the host", *peak_cells(device.host_bytes))] if device.host_terms else [])]


def _memory_kind_text(memory_use: StaticMemory, memory_kind: str) -> str:
    """Returns the name of a kind of memory in training, with the number format or optimizer name."""
    kind_name = KIND_NAMES[memory_kind]
    if memory_kind == "weights" and memory_use.adapters is not None:
        return "weights and adapters"
    format_by_kind = {"weights": memory_use.dtype, "gradients": memory_use.grad_dtype}
    if memory_kind == "optimizer" and memory_use.optimizer is not None:
        return f"optimizer ({memory_use.optimizer.name})"
    return (
        f"{kind_name} ({units.short_dtype(format_by_kind[memory_kind])})"
        if format_by_kind.get(memory_kind)
        else kind_name
    )


def _optimizer_rows(memory_use: StaticMemory, bytes_by_phase: Sequence[Mapping[str, int]]) -> list[Row]:
    """Returns rows of master weights and optimizer states, which exist in all phases; none for paged states.

    bytes_by_phase: bytes by kind, by phase.
    """
    optimizer_state = memory_use.optimizer
    differs_by_phase = any(
        bytes_by_kind.get("optimizer") != bytes_by_phase[0].get("optimizer") for bytes_by_kind in bytes_by_phase
    )
    # paged states are beside torch's tensors
    if optimizer_state is None or optimizer_state.paged_bytes or differs_by_phase:
        return []
    optimizer_parts = (
        [("master weights", "float32", memory_use.master_weights)] if memory_use.has_master_weights else []
    )
    optimizer_parts += [
        (state_name, "" if optimizer_state.dtype == "uint8" else optimizer_state.dtype, byte_count)
        for state_name, byte_count in optimizer_state.states.items()
        if state_name != "step"
    ]
    state_names = [
        f"{state_name_text} ({units.short_dtype(dtype)})" if dtype else state_name_text
        for state_name_text, dtype, _ in optimizer_parts
    ]
    return [
        row(state_name, *(byte_count for _ in bytes_by_phase), depth=1)
        for state_name, (_, _, byte_count) in zip(state_names, optimizer_parts, strict=True)
    ]


def phase_rows(device: DeviceMemory) -> list[Row]:
    """Returns one row per phase: its peak in bytes, the module of the peak, and a bar of memory over time."""
    table_rows = []
    for phase in device.moments:
        memory_points = [memory_point for memory_point in device.timeline if memory_point.phase == phase]
        highest_point = max(memory_points, key=lambda memory_point: memory_point.bytes)
        point_bytes = [memory_point.bytes for memory_point in _peaks_of_leaf_modules(memory_points)]
        table_rows.append(
            row(
                PHASE_NAMES[phase],
                highest_point.bytes,
                highest_point.module_path or "the model",
                bars.timeline_bar(point_bytes, device.peak_bytes),
            )
        )
    table_rows.append(row("after", device.after_step_bytes, None, None))
    return table_rows


def _peaks_of_leaf_modules(memory_points: Sequence[ModulePeak]) -> Sequence[ModulePeak]:
    """Returns the memory peaks of modules without children, in execution order."""
    parent_paths = {memory_point.module_path.rpartition(".")[0] for memory_point in memory_points}
    for module_path in list(parent_paths):
        while module_path := module_path.rpartition(".")[0]:
            parent_paths.add(module_path)
    return [
        memory_point
        for memory_point in memory_points
        if memory_point.module_path and memory_point.module_path not in parent_paths
    ] or memory_points
