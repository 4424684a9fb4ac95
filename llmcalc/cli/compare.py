from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from ..costs.context_length import usual_sequence
from ..costs.params import ParameterCount
from ..errors import InputError
from ..reports.compare import LAYOUTS, report
from ..sources.preset import Preset
from ..sources.presets import model_names
from ..studies.compare import SORT_KEYS, quantities, sort_order
from .options import (
    AllowUnknown,
    AttentionKind,
    CacheDtype,
    Experts,
    FormatOption,
    HeadOption,
    Kind,
    LeastParams,
    MostParams,
    NotesOption,
    OfflineOption,
    Output,
    Overrides,
    Seq,
    TargetsOrNone,
    about,
    load_one,
    show,
)
from .presets import chosen

SORT_HELP = f"Order by a quantity, smallest first: {', '.join(SORT_KEYS)}."


def command(
    targets: TargetsOrNone = None,
    everything: Annotated[bool, typer.Option("--all", help="Every preset, or those that the filters take.")] = False,
    kind: Kind = None,
    attention: AttentionKind = None,
    moe: Experts = None,
    least: LeastParams = None,
    most: MostParams = None,
    sort: Annotated[str | None, typer.Option("--sort", metavar="KEY", help=SORT_HELP, show_default=False)] = None,
    seq: Seq = None,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Models side by side: sizes, ratios of sizes, cost per token.
    With more than a few, one row for each model.
    """
    filters = (kind, attention, moe, least, most)
    if everything and targets:
        raise InputError("--all: it is of all presets; expected --all or TARGETs, not both")
    if not everything and not targets:
        raise InputError("missing argument TARGET; expected one or more, or --all (llmcalc compare --help explains)")
    if not everything and filters != (None,) * len(filters):
        raise InputError("compare: filters are for --all; expected --all, or no filter")
    compared: Sequence[tuple[Preset, ParameterCount | None]] = chosen(model_names(), *filters) if everything else ()
    if not everything or overrides or head is not None:  # the filters of --all apply to the models without overrides
        names = [preset.name for preset, _ in compared] if everything else targets or ()
        compared = [(load_one(name, overrides, head, allow_unknown), None) for name in names]
    tokens = min(usual_sequence(preset.model) for preset, _ in compared) if seq is None else seq  # the same for all
    models = []
    for preset, count in compared:
        with about(preset):
            models.append(quantities(preset.model, tokens, dtype, count))
    show(report([(compared[i][0], models[i]) for i in sort_order(models, sort)], LAYOUTS[fmt]), fmt, output, notes)
