"""The file that a picture is written to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from ...plots.figure import figure_bytes, format_of
from ..output import check_writable, write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def picture_file(path: Path) -> Path:
    """The same path. One that cannot be written is refused before anything is computed."""
    format_of(path)
    check_writable(path, "--output")
    return path


Picture: TypeAlias = Annotated[
    Path,
    typer.Option(
        "--output", "-o", metavar="FILE", callback=picture_file, help="A .svg, .png or .pdf file.", show_default=False
    ),
]


def write(figure: Figure, output: Path) -> None:
    """Writes a picture, whole or not at all, in the format of the file's suffix."""
    with write_whole(output, "--output") as out:
        out.buffer.write(figure_bytes(figure, format_of(output)))
