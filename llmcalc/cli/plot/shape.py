from __future__ import annotations

from typing import Annotated

import typer

from ...costs.context_length import usual_sequence
from ...plots.figure import needs_matplotlib
from ...studies.shape import budget_for, family, study
from ..options import AllowUnknown, CacheDtype, OfflineOption, Overrides, Seq, Targets, about, load_one
from .files import Picture, write


def command(
    targets: Targets,
    output: Picture,
    rows: Annotated[int, typer.Option("--rows", metavar="N", min=2, max=256, help="Shapes of each model.")] = 24,
    seq: Seq = None,
    dtype: CacheDtype = "bf16",
    overrides: Overrides = None,
    allow_unknown: AllowUnknown = False,
    offline: OfflineOption = False,
) -> None:
    """Shapes with as many parameters, deep to wide."""
    needs_matplotlib()
    from ...plots.shapes import shape

    found = []
    for target in targets:
        preset = load_one(target, overrides, None, allow_unknown)
        with about(preset):
            tokens = usual_sequence(preset.model) if seq is None else seq
            budget = budget_for(preset.model, seq=tokens)
            members = family(preset.model)
            found.append((preset.display, study(members, budget, preset.model, rows, seq=tokens, dtype=dtype)))
    write(shape(found), output)
