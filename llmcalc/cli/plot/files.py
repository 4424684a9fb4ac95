"""The option for the output file of a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ...plots.figure import figure_bytes, format_of, paper_columns
from ..output import check_writable, open_atomic_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def checked_picture_path(picture_path: Path, option_name: str = "--output") -> Path:
    """Returns the path of a picture unchanged. Raises `InputError`, which names the option, if it cannot be written."""
    format_of(picture_path, option_name)
    check_writable(picture_path, option_name)
    return picture_path


def _file_option(option_name: str) -> Any:
    def check_path(output_path: Path) -> Path:
        return checked_picture_path(output_path, option_name)

    return typer.Option(
        option_name, "-o", metavar="FILE", callback=check_path, help="A .svg, .png or .pdf file.", show_default=False
    )


PictureOption: TypeAlias = Annotated[Path, _file_option("--output")]
PictureFileOption: TypeAlias = Annotated[Path, _file_option("--output-file")]
"""The option for a picture's file in a command whose `--output` is the number of tokens of an answer."""


def _set_paper_columns(context: typer.Context, columns: int | None) -> int | None:
    """Sets the layout of the command's picture to one or two columns of a paper, until the command ends."""
    context.with_resource(paper_columns(columns))
    return columns


PaperColumnsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--columns",
        metavar="1|2",
        min=1,
        max=2,
        callback=_set_paper_columns,
        help="Lay out for one or two columns of a paper: text of 7.5 points at 3.4 or 7 inches. Default for a screen.",
        show_default=False,
    ),
]


def write_picture(figure: Figure, picture_path: Path, option_name: str = "--output") -> None:
    """Writes a picture, completely or not at all, in the format of the file suffix. option_name: the option's name."""
    with open_atomic_output(picture_path, option_name) as output_file:
        output_file.buffer.write(figure_bytes(figure, format_of(picture_path)))
