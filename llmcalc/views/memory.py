"""`llmcalc memory`: what is resident, and which accelerators hold it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import units
from ..costs.optimizers import OptimizerState
from ..costs.resident import TIGHT, Fit, MemoryUse
from ..sources.preset import Preset
from .document import Column, Report, Row, Table, said
from .notes import against, binary, plural, too_long, warned
from .summary import model_data

COLUMNS = (
    Column("part", "item", justify="left"),
    Column("dtype", "dtype"),
    Column("bytes", units.GIB.name, units.GIB.write),
    Column("bytes_per_parameter", "bytes per parameter", "{:.2f}".format),
)

FIT_COLUMNS = (
    Column("hardware", "accelerator", justify="left"),
    Column("capacity_bytes", "capacity", units.GIB.write),
    Column("share", "needed", units.percent),
    Column("left_bytes", "headroom", units.GIB.write),
    Column("verdict", "without activations", justify="left", verdict=True),
)

ZERO_RULE = 16
"""Bytes a parameter of mixed-precision training with Adam: ZeRO, arXiv:1910.02054, §3.1."""


def report(preset: Preset, use: MemoryUse, fits: Sequence[Fit]) -> Report:
    """The answer as data and as two tables: the parts, and the accelerators."""
    answer = f"{units.GIB.write(use.total_bytes)} {units.GIB.name} required"
    warnings = too_long(use.count.spec, use.workload) if use.kv_dtype else []
    warnings += [remark for fit in fits if not fit.hardware.sources for remark in fit.hardware.notes]
    notes = said([*warnings, *_notes(preset, use)])
    aside = f"in {use.phase}{_setting(use)}, {units.count(use.count.total)} parameters"
    parts = Table(preset.display, COLUMNS, _rows(use), aside, notes, answer, name="parts")
    rows = [Row([fit.hardware.name, fit.capacity, fit.share, fit.left_bytes, verdict_of(fit)]) for fit in fits]
    note = (
        f"tight: more than {units.percent(TIGHT, 0)} of the capacity; headroom: left for what is not counted "
        "(negative: shortfall); nominal: the usable share of the memory is not known"
    )
    fitting = Table(f"On one accelerator, in {units.GIB.name}", FIT_COLUMNS, rows, notes=[note], name="fits")
    return Report(_data(preset, use, fits), [parts, fitting], warnings=warned(preset, warnings)).of(preset.target)


def verdict_of(fit: Fit) -> str:
    """`fits`, `tight` or `no`, and of which memory where that is the nominal one."""
    return f"{fit.verdict} (of the nominal memory)" if fit.nominal else fit.verdict


def _data(preset: Preset, use: MemoryUse, fits: Sequence[Fit]) -> dict[str, Any]:
    """Bytes as exact integers."""
    inference = use.phase == "inference"
    workload = {"batch": use.workload.batch, "seq": use.workload.seq} if inference else {}
    formats = {"dtype": use.dtype, "kv_dtype": use.kv_dtype or None, "grad_dtype": use.grad_dtype or None}
    return {
        "model": model_data(preset),
        "workload": {"phase": use.phase, **workload, **formats, "precision": use.precision or None},
        "memory": {
            "total_bytes": use.total_bytes,
            "parameters": use.count.total,
            **use.parts,
            **_quantized_data(use),
            "optimizer": _optimizer_data(use.optimizer),
            "not_counted": use.not_counted,
        },
        "fits": [
            {
                "hardware": fit.hardware.name,
                "memory_bytes": fit.hardware.memory_bytes,
                "usable_memory_bytes": fit.hardware.usable_memory_bytes,
                "needed_bytes": fit.needed,
                "left_bytes": fit.left_bytes,
                "verdict": fit.verdict,
            }
            for fit in fits
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


def _rows(use: MemoryUse) -> list[Row]:
    """Parts that this phase or model does not have are left out."""

    def row(name: str, dtype: str, size: int, depth: int = 0, strong: bool = False) -> Row:
        return Row([name, units.short_dtype(dtype) if dtype else None, size, size / use.count.total], depth, strong)

    rows = _weight_rows(use, row)
    if use.kv_dtype:
        rows.append(row("KV cache", use.kv_dtype, use.kv_cache))
    if use.grad_dtype:
        rows.append(row("gradients", use.grad_dtype, use.gradients))
    state = use.optimizer
    if state is not None:
        rows.append(row(f"optimizer ({state.name})", "", state.bytes + use.master_weights))
        if use.has_master:
            rows.append(row("master weights", "float32", use.master_weights, 1))
        rows += [
            row(name, "" if state.dtype == "uint8" else _state_dtype(name, state), size, 1)
            for name, size in state.states.items()
        ]
    return [*rows, row("total", "", use.total_bytes, strong=True)]


def _weight_rows(use: MemoryUse, row: Callable[..., Row]) -> list[Row]:
    """One row, or one with the parts that the scheme has."""
    size = use.quantized
    if size is None:
        return [row("weights", use.dtype, use.weights)]
    formats = {"unconverted": size.dtype}
    parts = [row(name, formats.get(name, ""), stored, 1) for name, stored in size.by_part.data().items() if stored]
    return [row(f"weights ({size.scheme.label})", "", use.weights), *parts]


def _state_dtype(name: str, state: OptimizerState) -> str:
    return "float32" if name == "step" else state.dtype


def _notes(preset: Preset, use: MemoryUse) -> list[str]:
    n = use.count.total
    notes = [f"not counted: {'; '.join(use.not_counted)}", binary(units.GIB)]
    if use.quantized is not None:
        notes += use.quantized.scheme.notes()
    elif units.dtype(preset.dtype) != use.dtype:
        notes.append(f"published in {units.short_dtype(preset.dtype)}, counted in {units.short_dtype(use.dtype)}")
    if use.kv_dtype:
        tokens, sequences = plural(use.workload.seq, "token"), plural(use.workload.batch, "sequence")
        notes.append(
            f"KV cache: keys, values and any recurrent state of {sequences} of {tokens} (--batch, "
            f"--seq){_whole_context(use)}"
        )
    if use.phase == "training":
        notes += _training_notes(use, n)
    return notes


def _setting(use: MemoryUse) -> str:
    """What is in the cache, or the precision of training, for the heading."""
    if not use.kv_dtype:
        return f" ({use.precision})" if use.precision else ""
    many = "" if use.workload.batch == 1 else f"{use.workload.batch:,} × "
    return f" of {many}{plural(use.workload.seq, 'token')}"


def _whole_context(use: MemoryUse) -> str:
    tokens = use.full_context
    if tokens is None or tokens <= use.workload.seq:
        return ""
    return (
        f"; of one sequence of its whole context, {units.exact(tokens)} tokens: "
        f"{units.memory(use.kv_cache_of_full_context)}"
    )


def _training_notes(use: MemoryUse, n: int) -> list[str]:
    state = use.optimizer
    notes = [
        "by default gradients have the dtype of the weights; optimizer states have the dtype of the weights being "
        "updated, as in torch"
    ]
    if use.precision == "autocast":
        notes.append("autocast: the bf16 copies of the weights that matrix multiplications use are not counted")
    if state is not None and state.split:
        notes.append(f"{state.name}: {state.split}")
    if state is not None and "step" in state.states:
        notes.append("step: 4 bytes per tensor, as torch.optim keeps it")
    rule = ZERO_RULE * n
    difference = against(rule / use.total_bytes - 1, "this count")
    same = "; --master-weights fp32 counts that" if not use.has_master and use.dtype in ("bfloat16", "float16") else ""
    notes.append(
        f"rule of thumb: {ZERO_RULE} bytes per parameter (bf16 weights and gradients, fp32 master weights and Adam "
        "states) = "
        f"{units.GIB.write(rule)} {units.GIB.name}, {difference}{same}"
    )
    return notes
