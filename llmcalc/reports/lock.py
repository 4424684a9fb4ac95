"""The report of `llmcalc lock`: the lock file's entries as data, and the changed values as a table."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .. import units
from ..studies.lock import Change, LockEntry, program_version
from .document import Column, Report, Row, Table
from .notes import plural


def _short_digest(text: str) -> str:
    """Shortens a hash digest to its first digits. Other values stay unchanged."""
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text


COLUMNS = (
    Column("target", "model", justify="left", wrap=True),
    Column("parameters", "parameters", units.count),
    Column("active", "active", units.count),
    Column("bytes_per_token", "cache per token", units.memory),
    Column("bytes", "weights", units.memory),
    Column("sha256", "SHA-256", justify="left", brief=_short_digest),
)

CHANGE_COLUMNS = (
    Column("target", "model", justify="left", wrap=True),
    Column("key", "value", justify="left", wrap=True),
    Column("locked", "locked", brief=_short_digest),
    Column("now", "now", brief=_short_digest),
)


def report(lock_entries: Sequence[LockEntry]) -> Report:
    """Returns the entries of a lock file as data and as a table."""
    rows = [_entry_row(lock_entry.data) for lock_entry in lock_entries]
    document = {"lock": 1, "llmcalc": program_version(), "models": [lock_entry.data for lock_entry in lock_entries]}
    return Report(document, [Table("Lock", COLUMNS, rows, answer=plural(len(lock_entries), "model"))])


def _entry_row(document: dict[str, Any]) -> Row:
    bytes_per_token = None if document["cache"] is None else document["cache"]["bytes_per_token"]
    counts = document["params"]
    return Row(
        [
            document["target"],
            counts["total"],
            counts["active"],
            bytes_per_token,
            document["weights"]["published"],
            document["sha256"],
        ]
    )


def check_report(file: str, version: str, models: int, changes: Sequence[Change]) -> Report:
    """Returns the report of values that differ from a lock file.

    version: the version of llmcalc that wrote the file. models: the number of models in it.
    """
    answer_text = f"{plural(len(changes), 'value')} changed" if changes else f"{plural(models, 'model')} unchanged"
    rows = [
        Row(
            [changed_value.target, changed_value.key, _value_text(changed_value.locked), _value_text(changed_value.now)]
        )
        for changed_value in changes
    ]
    current_program_version = program_version()
    notes = (
        [f"locked by llmcalc {version}, checked by {current_program_version}"]
        if version != current_program_version
        else []
    )
    document = {
        "file": file,
        "ok": not changes,
        "locked_by": version,
        "checked": models,
        "changes": [vars(changed_value) for changed_value in changes],
    }
    return Report(document, [Table(file, CHANGE_COLUMNS, rows, notes=notes, answer=answer_text)], warnings=notes)


def _value_text(locked_value: Any) -> str:
    if locked_value is None:
        return "none"
    return units.exact(locked_value) if isinstance(locked_value, int) else str(locked_value)
