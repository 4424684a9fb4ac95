from __future__ import annotations

from typing import Annotated

import typer

from ..costs.params import params
from ..sources.presets import load_preset
from ..sources.search import search_presets
from ..views.presets import report
from .options import FormatOption, Output, complete_target, show

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="A model's name or alias to show it in full, or a part of one to list those that have it; all are "
        "listed without any.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
Details = Annotated[
    bool, typer.Option("--details", help="Show sources, settings and assumptions of every model that is listed.")
]


def command(
    names: Names = None,
    details: Details = False,
    fmt: FormatOption = "table",
    output: Output = None,
) -> None:
    """Models that come with llmcalc, beside their published figures.
    With names: aliases, sources, settings, assumptions.
    """
    found, exact = search_presets(names or [])
    presets = [load_preset(name) for name in found]
    show(report([(preset, params(preset.model)) for preset in presets], details or exact), fmt, output)
