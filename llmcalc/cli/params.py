from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..components.head import HeadKind
from ..costs.params import params
from ..errors import InputError
from ..optional import OPTIONAL_PARTS, included
from ..sources.names import is_checkpoint, is_hub_id
from ..views.document import Report, joined
from ..views.params import report
from .options import (
    FormatOption,
    HeadOption,
    OfflineOption,
    Output,
    Overrides,
    Targets,
    WithMtp,
    WithTowers,
    about,
    load_one,
    show,
)


def command(
    targets: Targets,
    overrides: Overrides = None,
    head: HeadOption = None,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Count the config's transformers class on meta, where no adapter reads it."),
    ] = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Parameters by component: total, active, embedding.
    Of a checkpoint (.safetensors, .gguf): what its header holds.
    """
    include = included(with_mtp, with_towers)
    if measure and (overrides or head or include):
        refused = ["--set", "--head", *(part.option for part in OPTIONAL_PARTS.values())]
        raise InputError(
            f"--measure: builds the class as the config says; expected no {', '.join(refused[:-1])} or {refused[-1]}"
        )
    show(
        joined([_measured(target) if measure else _one(target, overrides, head, include) for target in targets]),
        fmt,
        output,
    )


def _one(target: str, overrides: list[str] | None, head: HeadKind | None, include: frozenset[str]) -> Report:
    if is_checkpoint(Path(target)):
        from ..sources.checkpoints.read import read_checkpoint
        from ..views.checkpoint import report as checkpoint_report

        return checkpoint_report(Path(target).name, read_checkpoint(Path(target)))
    preset = load_one(target, overrides, head)
    with about(preset):
        return report(preset, params(preset.model, include))


def _measured(target: str) -> Report:
    from ..sources.hub import fetch_config
    from ..verify.measured import measure_config
    from ..views.measured import report as measured_report

    path = Path(target)
    if not path.exists() and is_hub_id(target):
        path = fetch_config(target)
    config = path / "config.json" if path.is_dir() else path
    return measured_report(path.name if path.is_dir() else target, *measure_config(config))
