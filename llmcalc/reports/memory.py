"""`llmcalc memory`: what fills a device, when, and which accelerators hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import units
from ..accelerator import TIGHT, Fit
from ..device_memory.device_memory import DeviceMemory, Point
from ..device_memory.estimate import Memory
from ..device_memory.optimizers.record import OptimizerState
from ..device_memory.simulated_run import cache_block, kernel_choices, optimizer_implementation, prompt_chunk
from ..device_memory.static import MemoryUse
from ..optional import TOWERS
from ..sources.preset import Preset
from ..workload.execution import AttentionImplementation
from . import bars, palette
from .bars import Bar
from .document import Column, Report, Row, Table, said
from .notes import against, binary, plural, too_long, warned
from .summary import model_data

COLUMNS = (
    Column("part", "item", justify="left"),
    Column("dtype", "dtype"),
    Column("bytes", units.GIB.name, units.GIB.write),
    Column("share", "share", units.percent),
    Column("bar", "", bars.share, justify="left", bar=True),
)

LONGEST_PATH = 24
"""Characters of a module's path that a table has room for."""


def _shortened(path: str) -> str:
    """A long path without the modules between its layer and its end: `layers.31.….core`."""
    if len(path) <= LONGEST_PATH:
        return path
    *above, last = path.split(".")
    while len(above) > 1 and len(".".join((*above, "…", last))) > LONGEST_PATH:
        above.pop()
    return ".".join((*above, "…", last))


PHASE_COLUMNS = (
    Column("phase", "phase", justify="left"),
    Column("bytes", f"most, {units.GIB.name}", units.GIB.write),
    Column("node", "where", justify="left", brief=_shortened),
    Column("course", "from start to end", justify="left"),
)

FIT_COLUMNS = (
    Column("hardware", "accelerator", justify="left"),
    Column("usable_bytes", "capacity", units.GIB.write),
    Column("share", "needed", units.percent),
    Column("left_bytes", "headroom", units.GIB.write),
    Column("verdict", "verdict", justify="left", verdict=True),
)

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
"""Bytes a parameter of mixed-precision training with Adam: ZeRO, arXiv:1910.02054, §3.1."""

STATUS = {
    "exact": "equal to the byte to torch",
    "source": "from the source code of a library, not run",
    "estimate": "estimate",
}
"""Status of a term → how a note says it; a term that is untested has a warning of its own."""


def report(preset: Preset, found: Memory, fits: Sequence[Fit], assumed: str = "") -> Report:
    """The answer as data and as tables: what fills the device, when, and the accelerators.

    assumed: the accelerator whose runtime was taken, where none was named.
    """
    use, device = found.states, found.device
    warnings = too_long(use.count.spec, use.workload)
    warnings += [remark for fit in fits if not fit.hardware.sources for remark in fit.hardware.notes]
    warnings += untested_notes(device)
    answer = f"{units.GIB.write(device.device_bytes)} {units.GIB.name} required"
    aside = f"{run_text(use)}, {units.count(use.count.total)} parameters"
    notes = said([*warnings, *_notes(preset, found, assumed)])
    parts = Table(preset.display, COLUMNS, _rows(use, device), aside, notes, answer, name="parts")
    phases = Table("Over time", PHASE_COLUMNS, phase_rows(device), name="phases")
    fitting = fits_table(fits, f"On one accelerator, in {units.GIB.name}")
    return Report(memory_data(preset, found, fits), [parts, phases, fitting], warnings=warned(preset, warnings)).of(
        preset.target
    )


def fits_table(fits: Sequence[Fit], title: str) -> Table:
    """Accelerators, and whether what a device needs fits on them."""
    rows = [Row([fit.hardware.name, fit.capacity, fit.share, fit.left_bytes, verdict_of(fit)]) for fit in fits]
    note = (
        f"tight: more than {units.percent(TIGHT, 0)} of the capacity; headroom: negative for a shortfall; nominal: the "
        "usable share of the memory is not known"
    )
    first = next((i for i, fit in enumerate(fits) if fit.verdict != "no"), len(fits) - 1)
    return Table(title, FIT_COLUMNS, rows, notes=[note], name="fits", sooner=True, centre=first)


def verdict_of(fit: Fit) -> str:
    """`fits`, `tight` or `no`, and of which memory where that is the nominal one."""
    return f"{fit.verdict} (of the nominal memory)" if fit.nominal else fit.verdict


# --- data -------------------------------------------------------------------------------------------------------------


def memory_data(preset: Preset, found: Memory, fits: Sequence[Fit]) -> dict[str, Any]:
    """Bytes as exact integers."""
    use = found.states
    return {
        "model": model_data(preset),
        "workload": workload_data(found),
        "execution": execution_data(found),
        "memory": {
            **device_data(found.device),
            "total_bytes": use.total_bytes,
            "parameters": use.count.total,
            "trained_parameters": use.trained,
            **use.parts,
            **_quantized_data(use),
            "optimizer": _optimizer_data(use.optimizer),
            "not_counted": not_counted(use),
        },
        "fits": fits_data(fits),
    }


def fits_data(fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Accelerators, and whether what a device needs fits on them."""
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
        for fit in fits
    ]


def workload_data(found: Memory) -> dict[str, Any]:
    """What is run, and in which number formats."""
    use, settings = found.states, found.settings
    return {
        "phase": settings.phase,
        "batch": use.workload.batch,
        "seq": use.workload.seq,
        "source": use.workload.source if found.spec.kind == "encoder-decoder" else None,
        "num_microbatches": (settings.num_microbatches or 1) if settings.phase == "training" else None,
        "dtype": use.dtype,
        "kv_dtype": use.kv_dtype or None,
        "grad_dtype": use.grad_dtype or None,
        "precision": use.precision or None,
    }


def execution_data(found: Memory, attention: AttentionImplementation | None = None) -> dict[str, Any]:
    """How it is run: the choices that change the memory of the same workload.

    attention: which implementation runs; by default the one with which the run was replayed.
    """
    attention = found.attention if attention is None else attention
    use, settings, training = found.states, found.settings, found.settings.phase == "training"
    choices = kernel_choices(settings, attention)
    adapters = use.adapters
    data: dict[str, Any] = {"attn_implementation": attention, "norm": choices.norm}
    if training:
        data |= {
            "cross_entropy": choices.cross_entropy,
            "logits_dtype": choices.logits_dtype or ("float32" if choices.cross_entropy == "eager" else use.dtype),
            "recompute": settings.recompute or "none",
            "compile": bool(settings.compile),
            "optimizer": None if use.optimizer is None else use.optimizer.name,
            "optimizer_impl": optimizer_implementation(settings, use),
            "zero_grad": settings.zero_grad or "none",
            "moe": settings.moe or "dropless",
            "lora": None
            if adapters is None
            else {
                "rank": adapters.rank,
                "targets": sorted(adapters.targets),
                "dtype": use.adapter_dtype,
                "dropout": bool(settings.lora_dropout),
                "base": adapters.base,
            },
        }
    else:
        data |= {
            "chunk": prompt_chunk(settings, use),
            "kv_block": cache_block(settings, use) or None,
            "mla": settings.mla or "auto",
        }
    return {**data, "allocator": "expandable" if found.runtime.expandable else "segments"}


def device_data(device: DeviceMemory) -> dict[str, Any]:
    """What a run holds."""
    return {
        "exact_bytes": device.exact_bytes,
        "peak_bytes": device.peak_bytes,
        "after_step_bytes": device.after_step_bytes,
        "reserved_bytes": device.reserved_bytes,
        "device_bytes": device.device_bytes,
        "peak_at": {"phase": device.peak_at.phase, "node": device.peak_at.node},
        "by_kind": dict(device.by_kind),
        "by_phase": {phase: dict(kinds) for phase, kinds in device.moments.items()},
        "timeline": [{"phase": one.phase, "node": one.node, "bytes": one.bytes} for one in device.timeline],
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


def _quantized_data(use: MemoryUse) -> dict[str, Any]:
    """Bytes of the weights by part, and under which scheme;
    nothing of either where they are stored as plain numbers.
    """
    size = use.quantized
    if size is None:
        return {"quantization": None, "weights_by_part": None, "weights_by_component": None}
    return {
        "quantization": {"scheme": size.scheme.label, "source": size.scheme.source, "unconverted_dtype": size.dtype},
        "weights_by_part": size.by_part.data(),
        "weights_by_component": {kind: parts.data() for kind, parts in size.by_component.items()},
    }


def _optimizer_data(state: OptimizerState | None) -> dict[str, Any]:
    if state is None:
        return {"name": None, "bytes": 0, "dtype": None, "states": {}}
    return {"name": state.name, "bytes": state.bytes, "dtype": state.dtype or None, "states": state.states}


# --- tables -----------------------------------------------------------------------------------------------------------


def _rows(use: MemoryUse, device: DeviceMemory) -> list[Row]:
    """What stands at the peak, by kind, and what the allocator and the runtime take beside it."""

    def row(name: str, dtype: str, size: int, depth: int = 0, strong: bool = False, kind: str = "") -> Row:
        part = size / device.device_bytes
        bar = None if depth or strong else Bar(part, palette.KINDS.get(kind, palette.OTHER))
        return Row([name, units.short_dtype(dtype) if dtype else None, size, part, bar], depth, strong)

    formats = {"weights": use.dtype, "gradients": use.grad_dtype, "cache": use.kv_dtype}
    below = {"weights": _weight_rows, "optimizer": _state_rows}
    rows: list[Row] = []
    for kind, size in device.by_kind.items():
        if size:
            name, dtype = KIND_NAMES[kind], formats.get(kind, "")
            if kind == "weights" and use.quantized is not None:
                name, dtype = f"weights ({use.quantized.scheme.label})", ""
            if kind == "weights" and use.adapters is not None:
                name, dtype = "weights and adapters", ""
            if kind == "optimizer" and use.optimizer is not None:
                name = f"optimizer ({use.optimizer.name})"
            rows.append(row(name, dtype, size, kind=kind))
            rows += below[kind](use, row) if kind in below else []
    rows.append(row(f"peak of the {PHASE_NAMES[device.peak_at.phase]}", "", device.peak_bytes, strong=True))
    rows += [row(f"{term.name} (estimate)", "", term.bytes) for term in device.terms if term.status == "estimate"][-2:]
    return [*rows, row("total", "", device.device_bytes, strong=True)]


def _weight_rows(use: MemoryUse, row: Callable[..., Row]) -> list[Row]:
    """The parts of the weights that the scheme has."""
    size = use.quantized
    if size is None:
        return []
    formats = {"unconverted": size.dtype}
    return [row(name, formats.get(name, ""), stored, 1) for name, stored in size.by_part.data().items() if stored]


def _state_rows(use: MemoryUse, row: Callable[..., Row]) -> list[Row]:
    """What the optimizer keeps on the device."""
    state = use.optimizer
    if state is None:
        return []
    rows = [row("master weights", "float32", use.master_weights, 1)] if use.has_master else []
    return rows + [
        row(name, "" if state.dtype == "uint8" else state.dtype, size, 1)
        for name, size in state.states.items()
        if name != "step"
    ]


def phase_rows(device: DeviceMemory) -> list[Row]:
    """One row a phase: its highest point, and its course."""
    rows = []
    for phase in device.moments:
        points = [point for point in device.timeline if point.phase == phase]
        highest = max(points, key=lambda point: point.bytes)
        values = [point.bytes for point in _in_time(points)]
        rows.append(
            Row(
                [PHASE_NAMES[phase], highest.bytes, highest.node or "the model", bars.course(values, device.peak_bytes)]
            )
        )
    rows.append(Row(["after", device.after_step_bytes, None, None]))
    return rows


def _in_time(points: Sequence[Point]) -> Sequence[Point]:
    """The modules in the order in which they ran, without those that only hold others."""
    holders = {point.node.rpartition(".")[0] for point in points}
    for name in list(holders):
        while name := name.rpartition(".")[0]:
            holders.add(name)
    return [point for point in points if point.node and point.node not in holders] or points


def untested_notes(device: DeviceMemory) -> list[str]:
    """One warning for the terms that nothing was compared with, by what has no measurement."""
    names: dict[str, list[str]] = {}
    for term in device.terms:
        if term.status == "untested":
            names.setdefault(term.witness, []).append(term.name)
    return [f"untested: {', '.join(terms)} ({why})" for why, terms in names.items()]


# --- notes ------------------------------------------------------------------------------------------------------------


def not_counted(use: MemoryUse) -> list[str]:
    """What the answer leaves out."""
    found = list(use.not_counted)
    if TOWERS.name in use.count.include:
        found.append(f"activations of the {TOWERS.title}")
    return found


def run_text(use: MemoryUse) -> str:
    """`in training of 1 × 2,048 tokens (bf16-master)`."""
    w = use.workload
    many = "" if w.batch == 1 else f"{w.batch:,} × "
    what = f" ({use.precision})" if use.precision else ""
    of = "after" if use.phase == "decode" else "of"
    return f"{use.phase} {of} {many}{plural(w.seq, 'token')}{what}"


def _notes(preset: Preset, found: Memory, assumed: str) -> list[str]:
    use, settings = found.states, found.settings
    notes = [_execution_note(found)]
    flash = found.flash_bytes
    if flash is not None and flash < found.device.device_bytes:
        notes.append(f"eager attention computes all scores; --attn-implementation flash requires {units.memory(flash)}")
    left = not_counted(use)
    notes += [f"not counted: {'; '.join(left)}" if left else "", binary(units.GIB)]
    tested = [term for term in found.device.terms if term.bytes and term.status != "untested"]
    notes += [f"{STATUS[term.status]}: {term.name} ({term.witness})" for term in tested]
    if assumed:
        notes.append(f"runtime of an {assumed} (--hardware)")
    if use.quantized is not None:
        notes += use.quantized.scheme.notes()
    elif units.dtype(preset.dtype) != use.dtype:
        notes.append(f"published in {units.short_dtype(preset.dtype)}, counted in {units.short_dtype(use.dtype)}")
    if use.kv_dtype:
        notes += [_cache_note(use, cache_block(settings, use)), _chunk_note(found)]
    return notes + (_training_notes(use) if use.phase == "training" else [])


def _execution_note(found: Memory) -> str:
    """How it was run, option by option."""
    data = execution_data(found)
    texts = [f"{found.attention} attention (--attn-implementation)", f"{data['norm']} norms (--norm)"]
    if found.settings.phase == "training":
        texts.append(f"{data['cross_entropy']} cross-entropy (--cross-entropy)")
        texts.append(f"recompute {data['recompute']} (--recompute)")
        texts.append(f"{data['optimizer']} {data['optimizer_impl']} (--optimizer-impl)")
    return f"runs with {', '.join(texts)}"


def _chunk_note(found: Memory) -> str:
    """How prompts are read, where that is in parts."""
    chunk, seq = prompt_chunk(found.settings, found.states), found.states.workload.seq
    if found.settings.phase == "decode" or chunk is None or chunk >= seq:
        return ""
    return f"prompts are read {plural(chunk, 'token')} of each sequence at a time (--chunk)"


def _cache_note(use: MemoryUse, block: int) -> str:
    tokens, sequences = plural(use.workload.seq, "token"), plural(use.workload.batch, "sequence")
    held = f"KV cache: keys, values and any recurrent state of {sequences} of {tokens} (--batch, --seq)"
    if block:
        return f"{held}, in blocks of {plural(block, 'token')} (--kv-block); no prefix is shared between sequences"
    return f"{held}; a new token is concatenated, which copies a layer's keys and values"


def _training_notes(use: MemoryUse) -> list[str]:
    state, n = use.optimizer, use.count.total
    notes = [
        "by default gradients have the dtype of the weights; optimizer states have the dtype of the weights being "
        "updated, as in torch"
    ]
    if state is not None and state.split:
        notes.append(f"{state.name}: {state.split}")
    if use.adapters is not None:
        return notes
    rule = ZERO_RULE * n
    difference = against(rule / use.total_bytes - 1, "what stays in memory")
    same = "; --master-weights fp32 counts that" if not use.has_master and use.dtype in ("bfloat16", "float16") else ""
    notes.append(
        f"rule of thumb: {ZERO_RULE} bytes per parameter (bf16 weights and gradients, fp32 master weights and Adam "
        "states) = "
        f"{units.GIB.write(rule)} {units.GIB.name}, {difference}{same}"
    )
    return notes
