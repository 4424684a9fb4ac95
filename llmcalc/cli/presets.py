from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from ..costs.params import params
from ..errors import InputError
from ..reports.presets import Counted, report
from ..sources.presets import load_preset
from ..sources.search import search_presets
from ..studies.selection import Selection, require_attention
from .options import (
    AttentionKind,
    Experts,
    FormatOption,
    Kind,
    LeastParams,
    MostParams,
    NotesOption,
    Output,
    complete_target,
    show,
)

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="A model's name or alias to show it in full, or a part of a name to list matching models; default: all.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
Details = Annotated[
    bool, typer.Option("--details", help="Show sources, settings and assumptions of every model that is listed.")
]


SORTS: dict[str, Callable[[Counted], Any]] = {
    "name": lambda one: one[0].name,
    "released": lambda one: one[0].released,
    "params": lambda one: one[1].total,
    "active": lambda one: one[1].active,
}
"""Value of `--sort` → the quantity to sort by."""

if TYPE_CHECKING:
    Sort: TypeAlias = str
else:
    Sort = Literal[tuple(SORTS)]  # typer accepts the keys alone; a type checker cannot read them from a dict


def command(
    names: Names = None,
    kind: Kind = None,
    attention: AttentionKind = None,
    moe: Experts = None,
    least: LeastParams = None,
    most: MostParams = None,
    sort: Annotated[Sort, typer.Option("--sort", help="Order of the list, smallest or oldest first.")] = "name",
    details: Details = False,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    output: Output = None,
) -> None:
    """Models that come with llmcalc, and their published figures.
    With names: aliases, sources, settings, assumptions.
    """
    found, exact = search_presets(names or [])
    counted = chosen(found, kind, attention, moe, least, most)
    shown = sorted(counted, key=SORTS[sort])
    show(report(shown, details or exact), fmt, output, notes or details or exact)


def chosen(
    names: Sequence[str],
    kind: str | None,
    attention: str | None,
    moe: bool | None,
    least: int | None,
    most: int | None,
) -> list[Counted]:
    """Those of the presets that the filters take, with their parameters.

    Raises `InputError` where there is none.
    """
    counted = [(preset, params(preset.model)) for preset in map(load_preset, names)]
    known = require_attention(attention, [preset.model for preset, _ in counted])
    selection = Selection(kind, known, moe, least, most)
    taken = [(preset, count) for preset, count in counted if selection.takes(preset.model, count.total)]
    if not taken:
        raise InputError("no preset is left by the filters; expected fewer of them (llmcalc presets lists all)")
    return taken
