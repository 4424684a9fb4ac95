from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...parallel.layout import Layout, Schedule
from ...plots.pictures import schedule_picture, schedule_timetable
from ..shared_options import length_option
from ..target_options import OutputOptions
from .files import PaperColumnsOption, checked_picture_path, write_picture


def _checked_picture_path(picture_path: Path | None) -> Path | None:
    """Returns the picture's path unchanged if the file can be written; `-` means standard output."""
    if picture_path is None or picture_path == Path("-"):
        return None
    return checked_picture_path(picture_path)


def command(
    pp: Annotated[int, length_option("--pp", help="Ranks of the pipeline.")],
    num_microbatches: Annotated[int, length_option("--num-microbatches", help="Micro-batches of one step.")],
    vpp: Annotated[int, length_option("--vpp", help="Chunks of layers on each rank.")] = 1,
    schedule: Annotated[
        Schedule, typer.Option("--schedule", help="Order of micro-batches; 1f1b with --vpp is interleaved.")
    ] = "1f1b",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            callback=_checked_picture_path,
            help="A .svg, .png or .pdf file; without it, or with -, the terminal.",
            show_default=False,
        ),
    ] = None,
    columns: PaperColumnsOption = None,
) -> None:
    """What each rank of a pipeline runs, and when."""
    layout = Layout(pp=pp, vpp=vpp, schedule=schedule)
    timetable = schedule_timetable(layout, num_microbatches)
    if output is None:
        from ...reports.schedule import report

        OutputOptions(notes=True).show(report(layout, timetable))
        return
    write_picture(schedule_picture(layout, timetable), output)
