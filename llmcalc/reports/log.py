"""The report of `llmcalc explain-log`: each memory term of a log beside the computed term, and the flag to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from .document import Column, Report, Row, Shown, Table, text_of
from .engine import TITLES
from .summary import model_data

if TYPE_CHECKING:
    from ..frameworks.logs.explained import ComparedTerm, ExplainedLog

LOG_TITLES = {
    **TITLES,
    "kv_tokens": "tokens",
    "process": "this process",
    "unallocated": "reserved, not allocated",
    "kv_buffer": "KV buffer",
    "params": "parameters",
    "trainable": "trainable parameters",
}
"""Name of a term → its title; of others the name with spaces."""

LOG_COLUMNS = (
    Column("term", "term", justify="left"),
    Column("log", "log", text_of),
    Column("computed", "computed", text_of),
    Column("difference", "difference", units.signed_percent),
)


def log_report(explained: ExplainedLog) -> Report:
    """Returns the report: the JSON document, and a table of the memory terms."""
    reading = explained.reading
    rows = [
        Row([_title(term), _shown_value(term, term.term.value), _shown_value(term, term.computed), term.difference])
        for term in explained.terms
    ]
    notes = [
        *([f"{reading.message}"] if reading.message else []),
        *(f"not computed without {text}" for text in explained.missing),
        *explained.notes,
    ]
    table = Table(
        _heading(explained),
        LOG_COLUMNS,
        rows,
        f"of one device, in {units.GIB.name}",
        notes,
        _answer(explained),
        name="terms",
    )
    target = explained.preset.target if explained.preset is not None else ""
    return Report(_data(explained), [table]).of(target)


def _heading(explained: ExplainedLog) -> str:
    reading = explained.reading
    program = f"{reading.title} {reading.version}".strip()
    model = explained.preset.display if explained.preset is not None else reading.model
    device = explained.hardware.title if explained.hardware is not None else reading.device
    return ", ".join(filter(None, (program, model, device)))


def _answer(explained: ExplainedLog) -> str:
    off = title_of(explained.off)
    change = f"; {explained.flag} changes it" if explained.flag else ""
    if explained.reading.kind == "oom":
        return f"out of memory: {off}{change}"
    if explained.reading.refused:
        return f"it did not start: {off}{change}"
    if not off:
        is_computed = any(term.computed is not None for term in explained.terms)
        return "no computed term is off" if is_computed else "nothing is computed"
    return f"{off} is off{change}"


def title_of(name: str) -> str:
    """Returns the displayed title of a memory term."""
    return LOG_TITLES.get(name, name.replace("_", " "))


def _title(term: ComparedTerm) -> str:
    title = title_of(term.term.name)
    return f"{title}, {term.term.device}" if term.term.device else title


def _shown_value(term: ComparedTerm, value: int | None) -> Shown | None:
    if value is None:
        return None
    return Shown(value, units.GIB.write(value) if term.term.unit == "bytes" else f"{value:,}")


def _data(explained: ExplainedLog) -> dict[str, Any]:
    reading = explained.reading
    return {
        "engine": {
            "name": reading.program,
            "version": reading.version or None,
            "record": explained.version.record if explained.version is not None else None,
        },
        "model": model_data(explained.preset) if explained.preset is not None else None,
        "model_in_log": reading.model or None,
        "hardware": explained.hardware.name if explained.hardware is not None else None,
        "kind": reading.kind,
        "message": reading.message or None,
        "terms": [
            {
                "name": term.term.name,
                "device": term.term.device or None,
                "unit": term.term.unit,
                "log": term.term.value,
                "computed": term.computed,
                "difference": term.difference,
            }
            for term in explained.terms
        ],
        "off": explained.off or None,
        "flag": explained.flag or None,
        "missing": list(explained.missing),
    }
