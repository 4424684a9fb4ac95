"""The report of `llmcalc memory`: the bytes of a run by kind and over time, and the accelerators on which it fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .. import units
from ..accelerator import Fit
from ..components.base import TokenMixer
from ..components.evidence import parts_below
from ..device_memory.device_memory import DeviceMemory, Point, Term
from ..device_memory.encoders import unreplayed_encoders
from ..device_memory.estimate import Memory
from ..device_memory.optimizers.record import OptimizerState
from ..device_memory.simulated_run import cache_block, kernel_choices, optimizer_implementation, prompt_chunk
from ..device_memory.static import MemoryUse
from ..errors import InputError
from ..optional import TOWERS
from ..sources.preset import Preset
from ..workload.execution import AttentionImplementation
from . import bars, palette
from .bars import Bar
from .document import Column, Report, Row, Table, without_repetitions
from .notes import binary_unit_note, plural, relative_error_text, too_long_notes, warnings_of_notes
from .summary import model_data

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

TERM_NAMES = {"free blocks": "fragmentation"}
"""Term of a device's memory → its name in tables, where that differs."""

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

ZERO_RULE = 16
"""Bytes per parameter of mixed-precision training with Adam: ZeRO, arXiv:1910.02054, §3.1."""

STATUS = {
    "exact": "equal to the byte to torch",
    "source": "from the source code of a library, not run",
    "estimate": "estimate",
}
"""Verification status of a term → its text in a note; untested terms have a warning instead."""


def report(preset: Preset, memory: Memory, accelerator_fits: Sequence[Fit], assumed_accelerator: str = "") -> Report:
    """Returns the report: tables of the kinds of memory, of phases and of accelerators.

    assumed_accelerator: the accelerator whose runtime is assumed, where none was named.
    """
    memory_use, device = memory.states, memory.device
    warnings = too_long_notes(memory_use.count.spec, memory_use.workload)
    warnings += [remark for fit in accelerator_fits if not fit.hardware.sources for remark in fit.hardware.notes]
    warnings += untested_notes(device) + stored_weights_notes(preset, memory_use)
    answer_text = f"{units.GIB.write(device.device_bytes)} {units.GIB.name} required"
    parameters = "" if memory_use.phase == "training" else f", {units.count(memory_use.count.total)} parameters"
    settings_line = settings_text(memory, memory.attention) + parameters
    notes = without_repetitions([*warnings, *_memory_notes(preset, memory, assumed_accelerator)])
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


def term_name(term: Term) -> str:
    """Returns the displayed name of a memory term."""
    return TERM_NAMES.get(term.name, term.name)


def estimated_parts(device: DeviceMemory) -> list[tuple[str, int]]:
    """Returns the names and bytes of the estimated terms that allocator and runtime add to the tensors."""
    estimates = [term for term in device.terms if term.status == "estimate" and term.name not in IN_PEAK]
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


# --- data -------------------------------------------------------------------------------------------------------------


def memory_data(preset: Preset, memory: Memory, accelerator_fits: Sequence[Fit]) -> dict[str, Any]:
    """Returns the JSON document of the memory of one device. Bytes are exact integers."""
    memory_use = memory.states
    return {
        "model": model_data(preset),
        "workload": workload_data(memory),
        "execution": execution_data(memory),
        "memory": {
            **device_data(memory.device),
            "total_bytes": memory_use.total_bytes,
            "parameters": memory_use.count.total,
            "trained_parameters": memory_use.trained,
            **memory_use.parts,
            **_quantized_data(memory_use),
            "optimizer": _optimizer_data(memory_use.optimizer),
            "not_counted": not_counted(memory_use),
        },
        **host_data(memory.device),
        "fits": fits_data(accelerator_fits),
    }


def host_data(device: DeviceMemory) -> dict[str, Any]:
    """Returns the bytes of host memory by term; empty if nothing is on the host."""
    if not device.host:
        return {}
    terms = [
        {"name": term.name, "bytes": term.bytes, "status": term.status, "witness": term.witness} for term in device.host
    ]
    return {"host_bytes": device.host_bytes, "host": terms}


def host_notes(device: DeviceMemory, ranks: int = 1) -> list[str]:
    """Writes the terms of host memory with sources.

    ranks: the ranks per host, each with these terms; default 1.
    """
    if not device.host:
        return []
    term_texts = ", ".join(f"{units.memory(term.bytes)} {term.name}" for term in device.host)
    sources = dict.fromkeys(f"{STATUS.get(term.status, term.status)} ({term.witness})" for term in device.host)
    ranks_note = f"; each of {ranks} ranks has as much" if ranks > 1 else ""
    return [f"host: {term_texts}{ranks_note}; {'; '.join(sources)}"]


def fits_data(accelerator_fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Returns the verdicts for all accelerators as plain data."""
    return [
        {
            "hardware": fit.hardware.name,
            "memory_bytes": fit.hardware.memory_bytes,
            "usable_memory_bytes": fit.hardware.usable_memory_bytes,
            "usable_bytes": fit.capacity,
            "device_bytes": fit.needed,
            "left_bytes": fit.left_bytes,
            "verdict": fit.verdict,
        }
        for fit in accelerator_fits
    ]


def workload_data(memory: Memory) -> dict[str, Any]:
    """Returns the workload: phase, sizes and number formats."""
    memory_use, settings = memory.states, memory.settings
    return {
        "phase": settings.phase,
        "batch": memory_use.workload.batch,
        "seq": memory_use.workload.seq,
        "source": memory_use.workload.source if memory.spec.kind == "encoder-decoder" else None,
        "num_microbatches": (settings.num_microbatches or 1) if settings.phase == "training" else None,
        "dtype": memory_use.dtype,
        "kv_dtype": memory_use.kv_dtype or None,
        "grad_dtype": memory_use.grad_dtype or None,
        "precision": memory_use.precision or None,
    }


def execution_data(memory: Memory, attention: AttentionImplementation | None = None) -> dict[str, Any]:
    """Returns the choices of kernels and optimizer that change the memory of a workload.

    attention: the implementation of attention; default that of the simulated run.
    """
    attention = memory.attention if attention is None else attention
    memory_use, settings, training = memory.states, memory.settings, memory.settings.phase == "training"
    choices = kernel_choices(settings, memory.spec, attention)
    adapters = memory_use.adapters
    choices_data: dict[str, Any] = {"attn_implementation": attention, "norm": choices.norm}
    if training:
        choices_data |= {
            "cross_entropy": choices.cross_entropy,
            "logits_dtype": choices.logits_dtype
            or ("float32" if choices.cross_entropy == "eager" and choices.float32_loss else memory_use.dtype),
            "recompute": settings.recompute or "none",
            "dropout": {} if memory.spec.dropout is None else memory.spec.dropout.probabilities(),
            "compile": bool(settings.compile),
            "optimizer": None if memory_use.optimizer is None else memory_use.optimizer.name,
            "optimizer_impl": optimizer_implementation(settings, memory_use),
            "zero_grad": settings.zero_grad or "none",
            "moe": settings.moe or "dropless",
            **({} if settings.fake_quantize is None else {"fake_quantize": settings.fake_quantize}),
            "lora": None
            if adapters is None
            else {
                "rank": adapters.rank,
                "targets": sorted(adapters.targets),
                "dtype": memory_use.adapter_dtype,
                "dropout": bool(settings.lora_dropout),
                "base": adapters.base,
            },
        }
    else:
        choices_data |= {
            "chunk": prompt_chunk(settings, memory_use),
            "kv_block": cache_block(settings, memory_use) or None,
            "mla": settings.mla or "auto",
        }
    return {**choices_data, "allocator": "expandable" if memory.runtime.expandable else "segments"}


def device_data(device: DeviceMemory) -> dict[str, Any]:
    """Returns the bytes of a device by kind, phase and module."""
    return {
        "exact_bytes": device.exact_bytes,
        "peak_bytes": device.peak_bytes,
        "after_step_bytes": device.after_step_bytes,
        "reserved_bytes": device.reserved_bytes,
        "device_bytes": device.device_bytes,
        "peak_at": {"phase": device.peak_at.phase, "node": device.peak_at.node},
        "by_kind": dict(device.by_kind),
        "by_phase": {phase: dict(bytes_by_kind) for phase, bytes_by_kind in device.moments.items()},
        "timeline": [
            {"phase": memory_point.phase, "node": memory_point.node, "bytes": memory_point.bytes}
            for memory_point in device.timeline
        ],
        "terms": [
            {
                "name": term.name,
                "bytes": term.bytes,
                "status": term.status,
                "witness": term.witness,
                "versions": term.versions or None,
            }
            for term in device.terms
        ],
    }


def _quantized_data(memory_use: MemoryUse) -> dict[str, Any]:
    """Returns the quantization scheme and the weight bytes by part; None for plain weights."""
    quantized_size = memory_use.quantized
    if quantized_size is None:
        return {"quantization": None, "weights_by_part": None, "weights_by_component": None}
    return {
        "quantization": {
            "scheme": quantized_size.scheme.label,
            "source": quantized_size.scheme.source,
            "unconverted_dtype": quantized_size.dtype,
        },
        "weights_by_part": quantized_size.by_part.data(),
        "weights_by_component": {
            component: component_bytes.data() for component, component_bytes in quantized_size.by_component.items()
        },
    }


def _optimizer_data(optimizer_state: OptimizerState | None) -> dict[str, Any]:
    if optimizer_state is None:
        return {"name": None, "bytes": 0, "dtype": None, "states": {}}
    return {
        "name": optimizer_state.name,
        "bytes": optimizer_state.bytes,
        "dtype": optimizer_state.dtype or None,
        "states": optimizer_state.states,
    }


# --- tables -----------------------------------------------------------------------------------------------------------


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


def untested_notes(device: DeviceMemory) -> list[str]:
    """Returns one warning per missing measurement, with the memory terms that depend on it."""
    terms_by_reason: dict[str, list[str]] = {}
    for term in device.terms:
        if term.status == "untested":
            terms_by_reason.setdefault(term.witness, []).append(term.name)
    return [f"untested: {', '.join(terms)} ({reason})" for reason, terms in terms_by_reason.items()]


def stored_weights_notes(preset: Preset, memory_use: MemoryUse) -> list[str]:
    """Returns a warning if a training run is counted over wider weights than the checkpoint's quantized ones."""
    method = str((preset.stored_as or {}).get("quant_method", ""))[:40]
    is_counted = memory_use.adapters is not None and memory_use.adapters.base != "none"
    if memory_use.phase != "training" or is_counted or not method or method in CONVERTED:
        return []
    return [f"the checkpoint is quantized by {method}; its training is counted over {memory_use.dtype} weights"]


CONVERTED = ("fp8", "mxfp4")
"""Methods of checkpoints whose weights trainers convert to 16 bits (transformers' `Mxfp4Config(dequantize=True)`)."""


# --- notes ------------------------------------------------------------------------------------------------------------


def not_counted(memory_use: MemoryUse) -> list[str]:
    """Returns a note on the tensors that the answer does not count."""
    texts = list(memory_use.not_counted)
    if TOWERS.name in memory_use.count.include:
        inputs = memory_use.inputs
        runs_encoders = inputs is not None and bool(inputs.runs)
        if inputs is not None:
            names = unreplayed_encoders(memory_use.count.spec, inputs)
            texts += [f"activations of {name}, whose layers are not replayed" for name in names]
        texts.append(
            "pixels, patch embeddings and projectors of the encoders' passes"
            if runs_encoders
            else f"activations of the {TOWERS.title}"
        )
    return texts


def run_text(memory_use: MemoryUse) -> str:
    """Writes a run's phase, tokens and precision or adapters: `training of 2,048 tokens (bf16-master)`."""
    workload = memory_use.workload
    batch = "" if workload.batch == 1 else f"{workload.batch:,} × "
    weights = _adapters_text(memory_use) or memory_use.precision
    precision = f" ({weights})" if weights else ""
    preposition = "after" if memory_use.phase == "decode" else "of"
    return f"{memory_use.phase} {preposition} {batch}{plural(workload.seq, 'token')}{precision}"


def _adapters_text(memory_use: MemoryUse) -> str:
    """Writes low-rank adapters with the format of the frozen weights; empty for a run that trains the weights."""
    adapters = memory_use.adapters
    if adapters is None:
        return ""
    return f"LoRA of rank {adapters.rank}" + (f" on {adapters.base}" if adapters.base != "none" else "")


PRECISION_TEXTS = {
    "bf16": "pure bf16",
    "bf16-master": "bf16 with fp32 master weights",
    "fp16": "pure fp16",
    "fp16-master": "fp16 with fp32 master weights",
    "autocast": "autocast to bf16",
    "fp8": "fp8 products, fp32 master weights",
    "mxfp8": "mxfp8 products, fp32 master weights",
    "nvfp4": "nvfp4 products, fp32 master weights",
}
"""Training precision → its text in a heading."""


def settings_text(memory: Memory, attention: AttentionImplementation) -> str:
    """Writes a run with assumed settings: `training of 2,048 tokens: sdpa, fused adamw, pure bf16`."""
    memory_use = memory.states
    if memory_use.phase != "training":
        return run_text(memory_use)
    precision = _adapters_text(memory_use) or PRECISION_TEXTS.get(memory_use.precision or "", memory_use.precision)
    optimizer, implementation = memory_use.optimizer, optimizer_implementation(memory.settings, memory_use)
    optimizer_text = "" if optimizer is None else f"{implementation} {optimizer.name}"
    run_title = run_text(memory_use).partition(" (")[0]
    scheme = memory.settings.fake_quantize
    rounding = "" if scheme is None else f"fake quantization {scheme}"
    return f"{run_title}: " + ", ".join(text for text in (attention, optimizer_text, precision, rounding) if text)


def _pure_note(memory: Memory) -> str:
    """Writes the tensors that pure bf16 stores in 16 bits; empty for other precisions."""
    if memory.states.precision != "bf16-master":
        return ""
    try:
        pure_bf16_bytes = memory.with_(precision="bf16").states.total_bytes
    except InputError:
        return ""
    saved_bytes = memory.states.total_bytes - pure_bf16_bytes
    return (
        "in pure bf16, as transformers trains a bf16 checkpoint, weights, gradients and states are "
        f"{units.memory(pure_bf16_bytes)}, {units.memory(saved_bytes)} less (--precision bf16)"
    )


def keeps_small_segments(memory: Memory) -> bool:
    """Whether allocator segments that later tensors cannot use exceed 2 % of the peak."""
    device = memory.device
    return not memory.runtime.expandable and 50 * (device.reserved_bytes - device.peak_bytes) > device.peak_bytes


def _memory_notes(preset: Preset, memory: Memory, assumed_accelerator: str) -> list[str]:
    memory_use, settings = memory.states, memory.settings
    notes = [_pure_note(memory), _execution_note(memory)]
    if settings.has_kbit_base and settings.recompute == "full":
        notes.append(
            f"with --base {settings.base} every layer is recomputed by default, as by PEFT's "
            "prepare_model_for_kbit_training; --recompute none counts it without"
        )
    flash = memory.flash_bytes
    if flash is not None and flash < memory.device.device_bytes:
        notes.append(f"eager attention computes all scores; --attn-implementation flash requires {units.memory(flash)}")
    if settings.phase == "training" and settings.attn_implementation is None and memory.attention == "eager":
        notes.append(
            "counted with eager attention: scaled_dot_product_attention takes no sinks and no soft cap, and biases and "
            "selections per head are not modelled with it"
        )
    if settings.phase == "training" and keeps_small_segments(memory):
        notes.append(
            "fragmentation: segments of freed activations too small for the optimizer's tensors stay reserved; "
            "--allocator expandable reuses them"
        )
    notes.append(_kernels_note(memory))
    left_out = not_counted(memory_use)
    notes += [f"not counted: {'; '.join(left_out)}" if left_out else "", binary_unit_note(units.GIB)]
    notes += host_notes(memory.device)
    tested_terms = [term for term in memory.device.terms if term.bytes and term.status != "untested"]
    notes += [f"{STATUS[term.status]}: {term_name(term)} ({term.witness})" for term in tested_terms]
    if assumed_accelerator:
        notes.append(f"runtime of an {assumed_accelerator} (--hardware)")
    if memory_use.quantized is not None:
        notes += memory_use.quantized.scheme.notes()
    elif units.dtype(preset.dtype) != memory_use.dtype:
        notes.append(
            f"published in {units.short_dtype(preset.dtype)}, counted in {units.short_dtype(memory_use.dtype)}"
        )
    if memory_use.kv_dtype:
        notes += [_cache_note(memory_use, cache_block(settings, memory_use)), _chunk_note(memory)]
    return notes + (_training_notes(memory_use) if memory_use.phase == "training" else [])


def _execution_note(memory: Memory) -> str:
    """Writes the kernel choices with their options."""
    choices_data = execution_data(memory)
    texts = [f"{memory.attention} attention (--attn-implementation)", f"{choices_data['norm']} norms (--norm)"]
    if memory.settings.phase == "training":
        texts.append(f"{choices_data['cross_entropy']} cross-entropy (--cross-entropy)")
        texts.append(f"recompute {choices_data['recompute']} (--recompute)")
        if choices_data["dropout"]:
            dropout_texts = ", ".join(
                f"{probability:g} ({dropout_place})" for dropout_place, probability in choices_data["dropout"].items()
            )
            texts.append(f"dropout {dropout_texts} (--dropout)")
        texts.append(f"{choices_data['optimizer']} {choices_data['optimizer_impl']} (--optimizer-impl)")
    return f"runs with {', '.join(texts)}"


def _kernels_note(memory: Memory) -> str:
    """Writes the packages whose kernels are assumed for recurrent layers; empty without recurrent layers."""
    if memory.settings.phase == "decode":
        return ""
    mixers = (part for part in parts_below(memory.spec) if isinstance(part, TokenMixer))
    packages = list(dict.fromkeys(package for mixer in mixers for package in mixer.kernel_packages))
    if not packages:
        return ""
    return (
        f"recurrent layers are counted with the kernels of {' and '.join(packages)}; where they are not installed, "
        "transformers runs loops of torch, which took up to 2.1 times as much on an H200"
    )


def _chunk_note(memory: Memory) -> str:
    """Writes the chunk length of a chunked prefill; empty for unchunked prompts."""
    chunk, seq = prompt_chunk(memory.settings, memory.states), memory.states.workload.seq
    if memory.settings.phase == "decode" or chunk is None or chunk >= seq:
        return ""
    return f"prompts are read {plural(chunk, 'token')} of each sequence at a time (--chunk)"


def _cache_note(memory_use: MemoryUse, block_tokens: int) -> str:
    tokens, sequences = plural(memory_use.workload.seq, "token"), plural(memory_use.workload.batch, "sequence")
    text = f"KV cache: keys, values and any recurrent state of {sequences} of {tokens} (--batch, --seq)"
    if block_tokens:
        return (
            f"{text}, in blocks of {plural(block_tokens, 'token')} (--kv-block); no prefix is shared between sequences"
        )
    return f"{text}; a new token is concatenated, which copies a layer's keys and values"


def _training_notes(memory_use: MemoryUse) -> list[str]:
    optimizer_state, parameters = memory_use.optimizer, memory_use.count.total
    notes = [
        "by default gradients have the dtype of the weights; optimizer states have the dtype of the weights being "
        "updated, as in torch"
    ]
    if optimizer_state is not None and optimizer_state.split:
        notes.append(f"{optimizer_state.name}: {optimizer_state.split}")
    if memory_use.adapters is not None:
        return notes
    bytes_by_rule = ZERO_RULE * parameters
    error_text = relative_error_text(bytes_by_rule / memory_use.total_bytes - 1, "what stays in memory")
    same_text = (
        "; --master-weights fp32 counts that"
        if not memory_use.has_master and memory_use.dtype in ("bfloat16", "float16")
        else ""
    )
    notes.append(
        f"rule of thumb: {ZERO_RULE} bytes per parameter (bf16 weights and gradients, fp32 master weights and Adam "
        "states) = "
        f"{units.GIB.write(bytes_by_rule)} {units.GIB.name}, {error_text}{same_text}"
    )
    return notes
