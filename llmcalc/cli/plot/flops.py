from __future__ import annotations

from ...plots.figure import needs_matplotlib
from ..options import AllowUnknown, HeadOption, OfflineOption, Overrides, Targets, load_one
from .files import Picture, write


def command(
    targets: Targets,
    output: Picture,
    overrides: Overrides = None,
    head: HeadOption = None,
    allow_unknown: AllowUnknown = False,
    offline: OfflineOption = False,
) -> None:
    """The FLOPs of one more token against the context before it."""
    needs_matplotlib()
    from ...plots.context import work

    write(work([load_one(target, overrides, head, allow_unknown) for target in targets]), output)
