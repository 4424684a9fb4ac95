"""The questions about lock files: recorded costs of models, and later differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError, short_repr
from ..reports.answer import ReportedAnswer
from ..sources.preset import Preset, target_in_errors
from ..sources.target_names import STDIN

LOCK_FILE = "llmcalc.lock.json"
"""The default name of the lock file."""

MAX_MODELS = 1000
"""Largest number of models of a lock file."""


@dataclass(frozen=True)
class LockFile:
    """A lock file's content. version: llmcalc's version. models: target → the model's entry."""

    version: str
    models: dict[str, dict[str, Any]]


def ask_lock(model_targets: Sequence[str], read_model: Callable[[str], Preset]) -> ReportedAnswer:
    """Computes the costs of models for a lock file, as entries (`studies.lock.LockEntry`).

    model_targets: names or paths, which a check reads again. read_model: reads one.
    Raises `InputError` for standard input, for a model that is named twice, and for one that cannot be counted.
    """
    from ..reports.lock import report
    from ..studies.lock import locked_model

    lock_entries = []
    for model_target in model_targets:
        if model_target.partition("?")[0] == STDIN:
            raise InputError("TARGET: '-' cannot be read again by --check; expected a preset's name or a path")
        if model_targets.count(model_target) > 1:
            raise InputError(f"TARGET: {model_target} is given more than once; expected it once")
        preset = read_model(model_target)
        with target_in_errors(preset):
            lock_entries.append(locked_model(preset))
    return ReportedAnswer(tuple(lock_entries), lambda: report(lock_entries))


def ask_lock_check(file: Path, read_model: Callable[[str], Preset]) -> ReportedAnswer:
    """Counts the models of a lock file, and compares the counts with the file.

    The result is the changes (`studies.lock.LockChange`); `ok` if there are none.

    Raises `InputError` for a file that is no lock file, and for a model that cannot be read any more.
    """
    from ..reports.lock import check_report
    from ..studies.lock import lock_changes

    lock_file = read_lock_file(file)
    lock_entries = ask_lock(list(lock_file.models), read_model).result
    entry_changes = tuple(
        entry_change
        for lock_entry, locked_entry in zip(lock_entries, lock_file.models.values(), strict=True)
        for entry_change in lock_changes(locked_entry, lock_entry.data)
    )
    return ReportedAnswer(
        entry_changes,
        lambda: check_report(str(file), lock_file.version, len(lock_file.models), entry_changes),
        not entry_changes,
    )


def read_lock_file(file: Path) -> LockFile:
    """Reads a lock file. Raises `InputError`, with the field's name, for a file of another origin."""
    from ..sources.files import LARGEST_CONFIG, parse_json, read_text, require_finite

    lock_document = parse_json(read_text(file, LARGEST_CONFIG), str(file))
    require_finite(lock_document, str(file))
    if not isinstance(lock_document, dict) or lock_document.get("lock") != 1:
        raise InputError(f"{file}: is no lock file of version 1; expected one that llmcalc lock TARGET -o FILE wrote")
    lock_models, program_version = lock_document.get("models"), lock_document.get("llmcalc")
    if not isinstance(lock_models, list) or not 0 < len(lock_models) <= MAX_MODELS:
        raise InputError(f"{file}: models: {short_repr(lock_models)}; expected a list of 1 to {MAX_MODELS:,} models")
    if not isinstance(program_version, str):
        raise InputError(
            f"{file}: llmcalc: {short_repr(program_version)}; expected the version that wrote the file, in text"
        )
    lock_entries: dict[str, dict[str, Any]] = {}
    for entry_number, lock_entry in enumerate(lock_models):
        entry_target = lock_entry.get("target") if isinstance(lock_entry, dict) else None
        if not isinstance(entry_target, str) or entry_target in lock_entries:
            raise InputError(
                f"{file}: models[{entry_number}].target: {short_repr(entry_target)}; expected a name or path, each once"
            )
        lock_entries[entry_target] = lock_entry
    return LockFile(program_version, lock_entries)
