"""The questions about differences between two models, or between a commit's files and today's."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ..costs.context_length import default_context_tokens
from ..errors import InputError
from ..reports.answer import ReportedAnswer
from ..reports.diff import report, skipped_files_report
from ..reports.document import join_reports
from ..reports.notes import counted_noun
from ..sources.files import read_text
from ..sources.git import NotAModelText, text_at_commit
from ..sources.huggingface.config_file import require_counted_type
from ..sources.preset import Preset, target_in_errors
from ..sources.target import load_text
from ..studies.diff import diff

COMMIT_HASH = re.compile("[0-9a-f]{40}")
SHORT_COMMIT_DIGITS = 10
"""Number of digits of a commit in a title."""


class ModelPair(NamedTuple):
    """Two models to compare.

    before, after: the models; None for a missing one.
    title: title of the comparison; empty for the models' names.
    unread_reason: why the first model could not be read; empty if it was.
    """

    before: Preset | None
    after: Preset | None
    title: str = ""
    unread_reason: str = ""


class ModelPairs(NamedTuple):
    """The pairs of models to compare, and the files that are not compared. skip_reasons: file → reason."""

    pairs: Sequence[ModelPair]
    skip_reasons: Mapping[Path, str]


def model_pairs_to_compare(
    model_targets: Sequence[Any],
    read_model: Callable[[Any], Preset],
    commit: str | None,
    models_only: bool,
    head_choice: Any = None,
    allow_unknown: bool = False,
    has_overrides: bool = False,
) -> ModelPairs:
    """Returns the pairs of models to compare: two TARGETs, or files at a commit and now.

    model_targets: two models, or with `commit` any number of files.
    read_model: function that reads a model.
    commit: the commit to compare with; None compares two models.
    models_only: whether files that are not a model's config are skipped.
    head_choice, allow_unknown: options for reading a file of the commit.
    has_overrides: whether options change fields.
    Raises `InputError` for another number of models, and for options that do not apply.
    """
    if commit is None:
        if models_only:
            raise InputError("--models-only: two models are compared; expected --git REF with files")
        if len(model_targets) != 2:
            raise InputError(
                f"diff: {counted_noun(len(model_targets), 'TARGET')}; expected two, or --git REF with files"
            )
        return ModelPairs([ModelPair(read_model(model_targets[0]), read_model(model_targets[1]))], {})
    if has_overrides:
        raise InputError("--set: the files are compared as they are; expected no --set with --git")
    model_paths = [Path(model_target) for model_target in model_targets]
    skip_reasons = {path: _skip_reason(path, commit) for path in model_paths} if models_only else {}
    skipped_files = {path: skip_reason for path, skip_reason in skip_reasons.items() if skip_reason}
    model_pairs = [
        _versions_of_file(path, commit, read_model, head_choice, allow_unknown)
        for path in model_paths
        if path not in skipped_files
    ]
    return ModelPairs(model_pairs, skipped_files)


def ask_diff(compared_changes: ModelPairs, seq: int | None = None, kv_dtype: str = "bfloat16") -> ReportedAnswer:
    """Computes the differences between the two models of every pair.

    seq: tokens per sequence; default the shorter context length of a pair.
    """
    model_differences, reports = [], []
    for earlier_preset, later_preset, pair_title, unread_reason in compared_changes.pairs:
        with target_in_errors(later_preset or earlier_preset):
            compared_presets = [preset for preset in (earlier_preset, later_preset) if preset is not None]
            sequence_tokens = (
                min(default_context_tokens(preset.model) for preset in compared_presets) if seq is None else seq
            )
            model_differences.append(diff(earlier_preset, later_preset, sequence_tokens, kv_dtype))
            reports.append(report(model_differences[-1], pair_title, unread_reason))
    if compared_changes.skip_reasons:
        reports.append(skipped_files_report(compared_changes.skip_reasons))
    return ReportedAnswer(tuple(model_differences), lambda: join_reports(reports))


def _skip_reason(path: Path, commit: str) -> str:
    """Returns the reason why a file is no model's config, now and at a commit; empty if it may be one."""
    if path.is_symlink():
        return "is a link"
    if path.suffix != ".json":
        return ""
    skip_reasons: list[str] = []
    for read_version in (_current_file_text, partial(text_at_commit, commit)):
        try:
            file_text = read_version(path)
        except NotAModelText as error:
            skip_reasons.append(str(error))
            continue
        if file_text is None:
            continue
        try:
            require_counted_type(file_text, str(path))
        except InputError as error:
            skip_reasons.append(str(error))
        else:
            return ""
    return skip_reasons[0].removeprefix(f"{path}: ").removeprefix(f"{commit}:{path}: ") if skip_reasons else ""


def _current_file_text(path: Path) -> str | None:
    """Returns the text of a file; None if it does not exist. Raises `NotAModelText` if it is too large or not text."""
    try:
        return read_text(path) if path.exists() else None
    except InputError as error:
        raise NotAModelText(str(error)) from None


def _versions_of_file(
    path: Path, commit: str, read_model: Callable[[Any], Preset], head_choice: Any, allow_unknown: bool
) -> ModelPair:
    """Reads a file's model at a commit and now; None for a missing or unreadable version."""
    if path.suffix not in (".json", ".toml"):
        raise InputError(f"{path}: with --git expected a file, a config.json or a .toml description")
    file_text = text_at_commit(commit, path)
    model_name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    earlier_model, unread_reason = None, ""
    current_model = read_model(str(path)) if path.exists() else None
    try:
        earlier_model = (
            None
            if file_text is None
            else load_text(file_text, f"{model_name} ({commit})", f"{commit}:{path}", (), head_choice, allow_unknown)
        )
    except InputError as error:
        if current_model is None:
            raise
        unread_reason = str(error)
    if earlier_model is None and current_model is None:
        raise InputError(f"{path}: exists neither here nor in {commit}; expected a config.json or a .toml description")
    pair_title = f"{path} since {commit[:SHORT_COMMIT_DIGITS] if COMMIT_HASH.fullmatch(commit) else commit}"
    return ModelPair(earlier_model, current_model, pair_title, unread_reason)
