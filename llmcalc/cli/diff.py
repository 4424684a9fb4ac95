from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ..costs.context_length import MOST_CONTEXT, usual_context
from ..errors import InputError, one_line
from ..reports.diff import report, skipped_files
from ..reports.document import joined
from ..reports.notes import plural
from ..sources.files import read_text
from ..sources.git import NoText, text_at
from ..sources.huggingface.file import require_counted_type
from ..sources.preset import Preset
from ..sources.target import load_text
from ..studies.diff import diff
from .options import (
    AllowUnknown,
    CacheDtype,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    TableOption,
    Targets,
    about,
    load_one,
    show,
    size,
)

COMMIT = re.compile("[0-9a-f]{40}")
SHORT = 10
"""Digits of a commit that a title has."""


def command(
    targets: Targets,
    git: Annotated[
        str | None,
        typer.Option(
            "--git",
            metavar="REF",
            help="Compare files of a git repository with what they were at this commit, branch or tag.",
            show_default=False,
        ),
    ] = None,
    models_only: Annotated[
        bool,
        typer.Option(
            "--models-only",
            help="With --git: skip files that are no config of a model that llmcalc counts, and list them.",
        ),
    ] = False,
    seq: Annotated[
        int | None,
        size(
            "--seq",
            "-s",
            text="Tokens of each sequence; the context that both models were made for, at most "
            f"{MOST_CONTEXT:,}, if not given.",
        ),
    ] = None,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """What changes from one model to another, or since a commit.
    Fields of the spec, parameters, FLOPs, KV cache, memory. Two TARGETs, or with --git any number of files.
    """
    pairs: list[tuple[Preset | None, Preset | None, str, str]]
    skipped: dict[Path, str] = {}
    if git is None:
        if models_only:
            raise InputError("--models-only: two models are compared; expected --git REF with files")
        if len(targets) != 2:
            raise InputError(f"diff: {plural(len(targets), 'TARGET')}; expected two, or --git REF with files")
        first, second = (load_one(target, overrides, head, allow_unknown) for target in targets)
        pairs = [(first, second, "", "")]
    else:
        if overrides:
            raise InputError("--set: the files are compared as they are; expected no --set with --git")
        paths = [Path(target) for target in targets]
        if models_only:
            reasons = {path: _reason_to_skip(path, git) for path in paths}
            skipped = {path: reason for path, reason in reasons.items() if reason}
        pairs = [_versions(path, git, head, allow_unknown) for path in paths if path not in skipped]
    reports = []
    for before, after, title, unread in pairs:
        with about(after or before):
            known = [one for one in (before, after) if one is not None]
            tokens = min(usual_context(one.model) for one in known) if seq is None else seq
            reports.append(report(diff(before, after, tokens, dtype), title, unread))
    for path, reason in skipped.items():
        print(f"note: skipped {one_line(str(path))}: {reason}", file=sys.stderr)
    if skipped:
        reports.append(skipped_files(skipped))
    show(joined(reports), fmt, output, notes, table)


def _reason_to_skip(path: Path, ref: str) -> str:
    """Why a file is no config of a model that llmcalc counts, neither now nor at a commit; empty if it is one. A
    description in TOML always is.
    """
    if path.is_symlink():
        return "is a link"
    if path.suffix != ".json":
        return ""
    reasons: list[str] = []
    for read in (_text_now, partial(text_at, ref)):
        try:
            text = read(path)
        except NoText as error:
            reasons.append(str(error))
            continue
        if text is None:
            continue
        try:
            require_counted_type(text, str(path))
        except InputError as error:
            reasons.append(str(error))
        else:
            return ""
    return reasons[0].removeprefix(f"{path}: ").removeprefix(f"{ref}:{path}: ") if reasons else ""


def _text_now(path: Path) -> str | None:
    """The text of a file as it is here; None if it is gone. Raises `NoText` for one that is too large or no text."""
    try:
        return read_text(path) if path.exists() else None
    except InputError as error:
        raise NoText(str(error)) from None


def _versions(
    path: Path, ref: str, head: HeadOption, allow_unknown: bool
) -> tuple[Preset | None, Preset | None, str, str]:
    """A file's model at a commit, and now, a title, and why the first could not be read, if so. None where the file is
    not there, or not to be read then.
    """
    if path.suffix not in (".json", ".toml"):
        raise InputError(f"{path}: with --git expected a file, a config.json or a .toml description")
    text = text_at(ref, path)
    name = path.parent.name if path.name == "config.json" and path.parent.name else path.stem
    before, unread = None, ""
    after = load_one(str(path), None, head, allow_unknown) if path.exists() else None
    try:
        before = None if text is None else load_text(text, f"{name} ({ref})", f"{ref}:{path}", (), head, allow_unknown)
    except InputError as error:
        if after is None:
            raise
        unread = str(error)
    if before is None and after is None:
        raise InputError(f"{path}: is neither here nor in {ref}; expected a config.json or a .toml description")
    return before, after, f"{path} since {ref[:SHORT] if COMMIT.fullmatch(ref) else ref}", unread
