"""The report of `llmcalc lock`: the lock file's entries as data, and the changed values as a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .. import units
from ..studies.lock import LockChange, LockedModel, program_version
from .document import Column, Report, Row, Table, row
from .notes import counted_noun


def _short_digest(value_text: str) -> str:
    """Shortens a hash digest to its first digits. Other values stay unchanged."""
    return value_text[:12] if re.fullmatch("[0-9a-f]{64}", value_text) else value_text


COLUMNS = (
    Column("target", "model", justify="left", may_wrap=True),
    Column("parameters", "parameters", units.count),
    Column("active", "active", units.count),
    Column("bytes_per_token", "cache per token", units.memory),
    Column("bytes", "weights", units.memory),
    Column("sha256", "SHA-256", justify="left", shorten=_short_digest),
)

CHANGE_COLUMNS = (
    Column("target", "model", justify="left", may_wrap=True),
    Column("key", "value", justify="left", may_wrap=True),
    Column("locked", "locked", shorten=_short_digest),
    Column("now", "now", shorten=_short_digest),
)


def report(lock_entries: Sequence[LockedModel]) -> Report:
    """Returns the entries of a lock file as data and as a table."""
    table_rows = [_lock_entry_row(lock_entry.data) for lock_entry in lock_entries]
    locked_models = [lock_entry.data for lock_entry in lock_entries]
    json_document = {"lock": 1, "llmcalc": program_version(), "models": locked_models}
    return Report(json_document, [Table("Lock", COLUMNS, table_rows, answer=counted_noun(len(lock_entries), "model"))])


def _lock_entry_row(entry_data: dict[str, Any]) -> Row:
    bytes_per_token = None if entry_data["cache"] is None else entry_data["cache"]["bytes_per_token"]
    parameter_counts = entry_data["params"]
    return row(
        entry_data["target"],
        parameter_counts["total"],
        parameter_counts["active"],
        bytes_per_token,
        entry_data["weights"]["published"],
        entry_data["sha256"],
    )


def check_report(file_name: str, locked_version: str, model_count: int, lock_changes: Sequence[LockChange]) -> Report:
    """Returns the report of values that differ from a lock file.

    locked_version: the version of llmcalc that wrote the file. model_count: the number of models in it.
    """
    answer_text = (
        f"{counted_noun(len(lock_changes), 'value')} changed"
        if lock_changes
        else f"{counted_noun(model_count, 'model')} unchanged"
    )
    table_rows = [
        row(
            lock_change.target,
            lock_change.key,
            _locked_value_text(lock_change.locked_value),
            _locked_value_text(lock_change.current_value),
        )
        for lock_change in lock_changes
    ]
    notes, current_program_version = [], program_version()
    if locked_version != current_program_version:
        notes.append(f"locked by llmcalc {locked_version}, checked by {current_program_version}")
    json_document = {
        "file": file_name,
        "ok": not lock_changes,
        "locked_by": locked_version,
        "checked": model_count,
        "changes": [
            {
                "target": lock_change.target,
                "key": lock_change.key,
                "locked": lock_change.locked_value,
                "now": lock_change.current_value,
            }
            for lock_change in lock_changes
        ],
    }
    tables = [Table(file_name, CHANGE_COLUMNS, table_rows, notes=notes, answer=answer_text)]
    return Report(json_document, tables, warnings=notes)


def _locked_value_text(locked_value: Any) -> str:
    if locked_value is None:
        return "none"
    return units.exact_text(locked_value) if isinstance(locked_value, int) else str(locked_value)
