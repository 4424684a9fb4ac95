from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from ..questions.listings import SORT_KEYS
from ..studies.model_selection import ModelFilter
from .shared_options import complete_target
from .target_options import OutputOptions, add_target_options

PresetNamesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="A model's name or alias to show it in full, or a part of a name to list matching models; default: all.",
        autocompletion=complete_target,
        show_default=False,
    ),
]
DetailsOption = Annotated[
    bool, typer.Option("--details", help="Show sources, settings and assumptions of every model that is listed.")
]

StaleOption = Annotated[
    bool, typer.Option("--stale", help="Only models none of whose sources was read within 180 days (`checked`).")
]

if TYPE_CHECKING:
    Sort: TypeAlias = str
else:
    Sort = Literal[tuple(SORT_KEYS)]  # typer accepts the keys alone; a type checker cannot read them from a dict


@add_target_options
def command(
    names: PresetNamesArgument = None,
    sort: Annotated[Sort, typer.Option("--sort", help="Order of the list, smallest or oldest first.")] = "name",
    details: DetailsOption = False,
    stale: StaleOption = False,
    *,
    model_filter: ModelFilter,
    output_options: OutputOptions,
) -> None:
    """Models that come with llmcalc, and their published figures.
    With names: aliases, sources, settings, assumptions.
    """
    from ..questions.listings import ask_presets

    presets_answer = ask_presets(names or (), model_filter, sort, details, stale)
    output_options.show_answer(presets_answer, notes=presets_answer.prints_all_fields, listing=True)
