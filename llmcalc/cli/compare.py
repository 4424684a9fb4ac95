from __future__ import annotations

from typing import Annotated

import typer

from ..studies.compare import SORT_KEYS
from ..studies.selection import Selection
from .options import CacheDtype, Seq, TargetsOrNone
from .target_options import Reading, Writing, takes_target

MOST_ON_A_SCREEN = 3
"""Largest number of models that are shortened to a screen; more are printed as a list."""

SORT_HELP = f"Order by a quantity, smallest first: {', '.join(SORT_KEYS)}."


@takes_target
def command(
    targets: TargetsOrNone = None,
    everything: Annotated[bool, typer.Option("--all", help="Every preset, or those that the filters take.")] = False,
    sort: Annotated[str | None, typer.Option("--sort", metavar="KEY", help=SORT_HELP, show_default=False)] = None,
    seq: Seq = None,
    kv_dtype: CacheDtype = "bf16",
    *,
    selection: Selection,
    reading: Reading,
    writing: Writing,
) -> None:
    """Models side by side: sizes, ratios of sizes, cost per token.
    With more than a few, one row for each model.
    """
    from ..questions.comparisons import ask_compare, check_compared
    from ..questions.listings import select_presets
    from ..reports.compare import LAYOUTS

    check_compared(bool(targets), everything, selection)
    counted = select_presets(selection) if everything else []
    if not everything or reading.changes:  # the filters of --all apply to the models without overrides
        names = [preset.name for preset, _ in counted] if everything else targets or []
        answer = ask_compare([(reading.load(name), None) for name in names], seq, kv_dtype, sort, LAYOUTS[writing.fmt])
    else:
        answer = ask_compare(counted, seq, kv_dtype, sort, LAYOUTS[writing.fmt])
    writing.show(answer.report(), listing=everything or len(answer.result) > MOST_ON_A_SCREEN)
