from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..costs.params import params
from ..errors import InputError
from ..optional import OPTIONAL_PARTS, included
from ..reports.document import Report, joined
from ..reports.params import report
from ..sources.names import is_checkpoint, is_hub_id
from .layout_options import ANY_RANK, AskedRank, takes_rank
from .options import (
    AllowUnknown,
    FormatOption,
    HeadOption,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    TableOption,
    Targets,
    WithMtp,
    WithTowers,
    about,
    load_one,
    show,
)


@takes_rank
def command(
    targets: Targets,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    asked: AskedRank = ANY_RANK,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Count by instantiating its transformers class on the meta device (unsupported model types).",
        ),
    ] = False,
    notes: NotesOption = False,
    table: TableOption = None,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Parameters by component: total, active, embedding.
    For a checkpoint (.safetensors, .gguf): the tensors in its header.
    """
    include = included(with_mtp, with_towers)
    changed = bool(overrides or head or include)
    if measure and changed:
        raise _refused("--measure: builds the class as the config says")
    if measure and asked.anything:
        raise InputError("--measure: counts a whole class; expected no layout")
    reports = []
    for target in targets:
        if measure:
            reports.append(_measured(target))
        elif is_checkpoint(Path(target)):
            if changed:
                raise _refused(f"{target}: a checkpoint's header is counted as it is")
            if asked.anything:
                raise InputError(f"{target}: a checkpoint's header is counted as it is; expected no layout")
            reports.append(_stored(target))
        else:
            preset = load_one(target, overrides, head, allow_unknown, include)
            with about(preset):
                share = asked.share(preset.model, lambda one: params(one, include).total, "holds")
                count = params(preset.model if share is None else share.model, include)
                reports.append(report(preset, count, share))
    show(joined(reports), fmt, output, notes, table)


def _refused(why: str) -> InputError:
    options = ["--set", "--head", *(part.option for part in OPTIONAL_PARTS.values())]
    return InputError(f"{why}; expected no {', '.join(options[:-1])} or {options[-1]}")


def _stored(target: str) -> Report:
    from ..reports.checkpoint import report as checkpoint_report
    from ..sources.checkpoints.read import read_checkpoint

    return checkpoint_report(Path(target).name, read_checkpoint(Path(target)))


def _measured(target: str) -> Report:
    from ..reports.measured import report as measured_report
    from ..sources.hub import fetch_config
    from ..witnesses.measured import measure_config

    path = Path(target)
    if not path.exists() and is_hub_id(target):
        path = fetch_config(target)
    config = path / "config.json" if path.is_dir() else path
    return measured_report(path.name if path.is_dir() else target, *measure_config(config))
