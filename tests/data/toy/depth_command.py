from __future__ import annotations

from ..reports.depth import report
from .options import Target
from .target_options import Reading, Writing, takes_target


@takes_target
def command(target: Target, *, reading: Reading, writing: Writing) -> None:
    """Prints the number of layers of a model."""
    writing.show(report(reading.load(target)))
