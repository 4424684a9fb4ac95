from __future__ import annotations

from ..reports.depth import report
from ..sources.target import load
from .options import FormatOption, Output, Target, show


def command(target: Target, fmt: FormatOption = "table", output: Output = None) -> None:
    """Prints the number of layers of a model."""
    show(report(load(target)), fmt, output)
