from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from ..costs.context_length import MOST_CONTEXT, usual_context
from ..errors import InputError
from ..reports.diff import report
from ..reports.document import joined
from ..reports.notes import plural
from ..sources.git import text_at
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
    if git is None:
        if len(targets) != 2:
            raise InputError(f"diff: {plural(len(targets), 'TARGET')}; expected two, or --git REF with files")
        first, second = (load_one(target, overrides, head, allow_unknown) for target in targets)
        pairs = [(first, second, "", "")]
    else:
        if overrides:
            raise InputError("--set: the files are compared as they are; expected no --set with --git")
        pairs = [_versions(Path(target), git, head, allow_unknown) for target in targets]
    reports = []
    for before, after, title, unread in pairs:
        with about(after or before):
            known = [one for one in (before, after) if one is not None]
            tokens = min(usual_context(one.model) for one in known) if seq is None else seq
            reports.append(report(diff(before, after, tokens, dtype), title, unread))
    show(joined(reports), fmt, output, notes, table)


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
