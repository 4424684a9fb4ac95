"""The report of `llmcalc explain-log`: each memory term of a log beside the computed term, and the flags to change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import units
from .document import Column, DisplayedValue, Report, Table, displayed_text, row
from .engine import TERM_TITLES
from .notes import device_phrase
from .summary import model_data

if TYPE_CHECKING:
    from ..frameworks.logs.explained_log import ComparedTerm, ExplainedLog

LOG_TITLES = {
    **TERM_TITLES,
    "kv_tokens": "tokens",
    "process": "this process",
    "unallocated": "reserved, not allocated",
    "kv_buffer": "KV buffer",
    "params": "parameters",
    "trainable": "trainable parameters",
}
"""Name of a memory term → its title, if that is not the name with spaces."""

LOG_COLUMNS = (
    Column("term", "term", justify="left"),
    Column("log", "log", displayed_text),
    Column("computed", "computed", displayed_text),
    Column("difference", "difference", units.signed_percent),
)


def log_report(log_answer: ExplainedLog) -> Report:
    """Returns the report: the JSON document, and a table of the memory terms."""
    parsed_log = log_answer.parsed_log
    table_rows = [
        row(
            _term_title(memory_term),
            _displayed_value(memory_term, memory_term.logged_term.value),
            _displayed_value(memory_term, memory_term.computed_value),
            memory_term.difference,
        )
        for memory_term in log_answer.terms
    ]
    notes = [
        *([f"{parsed_log.stop_message}"] if parsed_log.stop_message else []),
        *(f"not computed without {missing_input}" for missing_input in log_answer.missing_inputs),
        *log_answer.notes,
    ]
    subtitle = f"of one device, in {units.GIB.name}"
    title = _heading_text(log_answer)
    table = Table(title, LOG_COLUMNS, table_rows, subtitle, notes, _answer_text(log_answer), name="terms")
    model_target = log_answer.preset.target if log_answer.preset is not None else ""
    return Report(_log_data(log_answer), [table]).with_target(model_target)


def _heading_text(log_answer: ExplainedLog) -> str:
    parsed_log = log_answer.parsed_log
    program_text = f"{parsed_log.title} {parsed_log.version}".strip()
    model_text = log_answer.preset.display if log_answer.preset is not None else parsed_log.model
    device_name = parsed_log.device
    if log_answer.hardware is not None:
        device_name = device_phrase(log_answer.devices, log_answer.hardware.title)
    return ", ".join(filter(None, (program_text, model_text, device_name)))


def _answer_text(log_answer: ExplainedLog) -> str:
    too_large_term = title_of_term(log_answer.too_large_term)
    flag_change = f"; {log_answer.suggested_flag} changes it" if log_answer.suggested_flag else ""
    if log_answer.parsed_log.kind == "oom" and log_answer.too_large_term in ("process", "allocated"):
        return f"out of memory: the run requires more than the device has{flag_change}"
    if log_answer.parsed_log.kind == "oom":
        return f"out of memory: {too_large_term}{flag_change}"
    if log_answer.parsed_log.refused_to_start:
        return f"it did not start: {too_large_term}{flag_change}"
    if not too_large_term:
        is_computed = any(compared_term.computed_value is not None for compared_term in log_answer.terms)
        return "no computed term is off" if is_computed else "nothing is computed"
    return f"{too_large_term} is off{flag_change}"


def title_of_term(term_name: str) -> str:
    """Returns the displayed title of a memory term."""
    return LOG_TITLES.get(term_name, term_name.replace("_", " "))


def _term_title(compared_term: ComparedTerm) -> str:
    term_title = title_of_term(compared_term.logged_term.name)
    return f"{term_title}, {compared_term.logged_term.device}" if compared_term.logged_term.device else term_title


def _displayed_value(compared_term: ComparedTerm, logged_value: int | None) -> DisplayedValue | None:
    if logged_value is None:
        return None
    return DisplayedValue(
        logged_value,
        units.GIB.write(logged_value) if compared_term.logged_term.unit == "bytes" else f"{logged_value:,}",
    )


def _log_data(log_answer: ExplainedLog) -> dict[str, Any]:
    parsed_log = log_answer.parsed_log
    rules_version = log_answer.version.rules_version if log_answer.version is not None else None
    return {
        "engine": {"name": parsed_log.program, "version": parsed_log.version or None, "record": rules_version},
        "model": model_data(log_answer.preset) if log_answer.preset is not None else None,
        "model_in_log": parsed_log.model or None,
        "hardware": log_answer.hardware.name if log_answer.hardware is not None else None,
        "kind": parsed_log.kind,
        "message": parsed_log.stop_message or None,
        "terms": [
            {
                "name": compared_term.logged_term.name,
                "device": compared_term.logged_term.device or None,
                "unit": compared_term.logged_term.unit,
                "log": compared_term.logged_term.value,
                "computed": compared_term.computed_value,
                "difference": compared_term.difference,
            }
            for compared_term in log_answer.terms
        ],
        "off": log_answer.too_large_term or None,
        "flag": log_answer.suggested_flag or None,
        "missing": list(log_answer.missing_inputs),
    }
