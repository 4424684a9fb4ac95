from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import InputError
from ...parallel.layout import Layout, Schedule
from ...parallel.schedules import pipeline, timetable
from ...plots.figure import needs_matplotlib
from ..options import show, size
from .files import picture_file, write

MOST_PASSES = 100_000
"""Forward passes of micro-batches through stages, so that a schedule is drawn within seconds."""


def _picture(path: Path | None) -> Path | None:
    """Refused before anything is computed. `-` is standard output."""
    if path is None or path == Path("-"):
        return None
    return picture_file(path)


def command(
    pp: Annotated[int, size("--pp", text="Ranks of the pipeline.")],
    num_microbatches: Annotated[int, size("--num-microbatches", text="Micro-batches of one step.")],
    vpp: Annotated[int, size("--vpp", text="Chunks of layers on each rank.")] = 1,
    schedule: Annotated[
        Schedule, typer.Option("--schedule", help="Order of micro-batches; 1f1b with --vpp is interleaved.")
    ] = "1f1b",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            callback=_picture,
            help="A .svg, .png or .pdf file; without it, or with -, the terminal.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """What each rank of a pipeline runs, and when."""
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule)
    most = MOST_PASSES // (pp * vpp)
    if num_microbatches > most:
        fewer = f"at most {most}" if most else "fewer stages"
        raise InputError(
            f"--num-microbatches: {num_microbatches} on {pp * vpp} stages are more than can be drawn; expected {fewer}"
        )
    found = timetable(pipeline(layout, num_microbatches))
    if output is None:
        from ...reports.schedule import report

        show(report(layout, found), "table", None, notes=True)
        return
    needs_matplotlib()
    from ...plots.schedule import schedule as picture

    write(picture(layout, found), output)
