from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..reports.checkpoint import check_report
from ..sources.checkpoints.read import read_checkpoint
from ..sources.hub import fetch_headers
from ..sources.names import is_hub_id
from ..witnesses.checkpoint import match
from .options import (
    AllowUnknown,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    Target,
    about,
    load_one,
    show,
)


def command(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT",
            help="A .safetensors file, its index, a .gguf file, a folder that holds one, or a hub id (org/name).",
            show_default=False,
        ),
    ],
    target: Target,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Compare the tensors of a checkpoint with a model. Only the header is read.
    Exit code 1 if they differ.
    """
    preset = load_one(target, overrides, head, allow_unknown)
    stored = (
        fetch_headers(checkpoint)
        if not Path(checkpoint).exists() and is_hub_id(checkpoint)
        else read_checkpoint(Path(checkpoint))
    )
    with about(preset):
        found = match(preset.model, stored)
    show(check_report(preset, checkpoint, stored, found), fmt, output, notes)
    if not found.ok:
        raise typer.Exit(1)
