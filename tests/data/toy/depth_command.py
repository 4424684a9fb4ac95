from __future__ import annotations

from ..reports.depth import report
from .shared_options import TargetArgument
from .target_options import OutputOptions, TargetOptions, add_target_options


@add_target_options
def command(target: TargetArgument, *, target_options: TargetOptions, output_options: OutputOptions) -> None:
    """Prints the number of layers of a model."""
    output_options.show(report(target_options.load(target)))
