from __future__ import annotations

from ...costs.params import params
from ...optional import included
from ...plots.figure import needs_matplotlib
from ..options import AllowUnknown, HeadOption, OfflineOption, Overrides, Targets, WithMtp, WithTowers, load_one
from .files import Picture, write


def command(
    targets: Targets,
    output: Picture,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    with_mtp: WithMtp = False,
    with_towers: WithTowers = False,
    offline: OfflineOption = False,
) -> None:
    """Where the parameters are: a bar for each model, by component."""
    needs_matplotlib()
    from ...plots.params import params as picture

    include = included(with_mtp, with_towers)
    models = [load_one(target, overrides, head, allow_unknown, include) for target in targets]
    write(picture([(preset.display, params(preset.model, include)) for preset in models]), output)
