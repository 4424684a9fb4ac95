from __future__ import annotations

from typing import Annotated

import typer

from ..costs.limits import usual_sequence
from ..studies.compare import SORT_KEYS, quantities, sort_order
from ..views.compare import LAYOUTS, report
from .options import (
    AllowUnknown,
    CacheDtype,
    FormatOption,
    HeadOption,
    OfflineOption,
    Output,
    Overrides,
    Seq,
    Targets,
    about,
    load_all,
    show,
)

SORT_HELP = f"Order by a quantity, smallest first: {', '.join(SORT_KEYS)}."


def command(
    targets: Targets,
    sort: Annotated[str | None, typer.Option("--sort", metavar="KEY", help=SORT_HELP, show_default=False)] = None,
    seq: Seq = None,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    fmt: FormatOption = "table",
    offline: OfflineOption = False,
    output: Output = None,
) -> None:
    """Models side by side: sizes, ratios of sizes, cost a token."""
    presets = load_all(targets, overrides, head, allow_unknown)
    tokens = min(usual_sequence(preset.model) for preset in presets) if seq is None else seq  # the same for all
    models = []
    for preset in presets:
        with about(preset):
            models.append(quantities(preset.model, tokens, dtype))
    show(report([(presets[i], models[i]) for i in sort_order(models, sort)], LAYOUTS[fmt]), fmt, output)
