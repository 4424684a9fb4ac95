from __future__ import annotations

from ..reports.depth import report
from .options import Target
from .target_options import Reading, Writing, takes_target


@takes_target
def command(target: Target, *, target_options: Reading, output_options: Writing) -> None:
    """Prints the number of layers of a model."""
    output_options.show(report(target_options.load(target)))
