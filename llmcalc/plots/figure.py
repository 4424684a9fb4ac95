"""Creates figures and writes them to files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from ..errors import InputError, MissingExtra
from ..reports.palette import TEXT_COLOUR

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextPath

PICTURE_FORMATS = ("svg", "png", "pdf")
"""Suffixes of the files that a picture can be written to."""

MATPLOTLIB_STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "hatch.linewidth": 0.7,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "llmcalc",  # equal pictures are equal files
}


COLUMN_INCHES = {1: 4.5, 2: 9.3}
"""Number of paper columns → picture width in inches; printed 3.4 or 7 inches wide, text of 10 points has 7.5."""

_paper_columns: ContextVar[int | None] = ContextVar("paper_columns", default=None)


@contextmanager
def paper_columns(column_count: int | None) -> Iterator[None]:
    """Returns a context manager in which pictures are laid out for one or two columns of a paper; None for a screen."""
    reset_token = _paper_columns.set(column_count)
    try:
        yield
    finally:
        _paper_columns.reset(reset_token)


def is_narrow() -> bool:
    """Whether a picture is for one column of a paper, with panels stacked vertically."""
    return _paper_columns.get() == 1


def figure_width(width_inches: float) -> float:
    """Returns the picture's width in inches: a paper column's, or the given width on a screen."""
    column_count = _paper_columns.get()
    return width_inches if column_count is None else COLUMN_INCHES[column_count]


def wrapped_text(text: str, width_inches: float, font_points: float = 10, font_weight: str = "normal") -> str:
    """Breaks a text between words into lines of at most a width, which is measured in the font's letters.

    font_points: the letter size.
    """
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    font_properties, text_lines = FontProperties(weight=font_weight), [""]
    for next_word in text.split(" "):
        extended_line = f"{text_lines[-1]} {next_word}".lstrip()
        if _is_within_width(TextPath((0, 0), extended_line, font_points, prop=font_properties), width_inches * 72):
            text_lines[-1] = extended_line
        else:
            text_lines.append(next_word)
    return "\n".join(filter(None, text_lines))


def _is_within_width(path: TextPath, width_points: float) -> bool:
    """Whether a path is at most `width_points` wide, judged by the control points, which enclose its curves."""
    control_points = path.vertices[path.codes != path.CLOSEPOLY][:, 0]
    if not len(control_points) or control_points.max() - control_points.min() <= width_points:
        return True
    return bool(path.get_extents().width <= width_points)


def text_for_one_column(text: str, width_inches: float = 2.9, font_points: float = 10) -> str:
    """Breaks a text into lines of this width in a one-column picture, and returns it unchanged in other pictures."""
    return wrapped_text(text, width_inches, font_points) if is_narrow() else text


def require_matplotlib() -> None:
    """Raises `MissingExtra` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("a plot", "matplotlib", "plot") from None


def new_figure(width_inches: float, height_inches: float, **figure_options: Any) -> Figure:
    """Creates an empty figure in llmcalc's style, without a window.

    width_inches, height_inches: inches; the width of a picture for a paper is that of its columns.
    """
    require_matplotlib()
    from matplotlib import rc_context

    with rc_context(MATPLOTLIB_STYLE):
        return _notebook_figure()(
            figsize=(figure_width(width_inches), height_inches), layout="constrained", **figure_options
        )


DrawParameters = ParamSpec("DrawParameters")
DrawnType = TypeVar("DrawnType")


def in_llmcalc_style(draw_picture: Callable[DrawParameters, DrawnType]) -> Callable[DrawParameters, DrawnType]:
    """Wraps a drawing function to use llmcalc's style. Raises `MissingExtra` without matplotlib."""

    @wraps(draw_picture)
    def draw_in_style(*args: DrawParameters.args, **kwargs: DrawParameters.kwargs) -> DrawnType:
        require_matplotlib()
        from matplotlib import rc_context

        with rc_context(MATPLOTLIB_STYLE):
            return draw_picture(*args, **kwargs)

    return draw_in_style


def draw_heading(figure: Figure, heading_text: str, subtitle: str = "") -> None:
    """Draws a figure's heading above the panels, aligned left. subtitle: a text in small letters below the heading."""
    heading_text = wrapped_text(heading_text, figure.get_figwidth() - 0.2, 12, "bold")
    if subtitle:
        subtitle = text_for_one_column(subtitle, figure.get_figwidth() - 0.2, 9)
        subtitle_top = 1 - (0.06 + 0.2 * len(heading_text.splitlines())) / figure.get_figheight()
        figure.text(0.01, subtitle_top, subtitle, ha="left", va="top", color=TEXT_COLOUR, fontsize=9)
        heading_text += "\n" * len(subtitle.splitlines())
    figure.suptitle(heading_text, x=0.01, ha="left", color=TEXT_COLOUR, fontsize=12, fontweight="bold")


@cache
def _notebook_figure() -> type[Figure]:
    """Returns a figure class that notebooks display, without importing pyplot."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_svg_(self) -> str:
            return figure_bytes(self, "svg").decode()

    return NotebookFigure


def axes_of_panels(axes: Any, panel_count: int) -> list[Axes]:
    """Returns the axes of a picture's panels, row by row from the upper left.

    axes: result of `figure.subplots`, or a list.
    Raises `InputError` if their number is not `panel_count`.
    """
    import numpy

    axes_list = list(numpy.ravel(axes))
    if len(axes_list) != panel_count:
        raise InputError(f"ax: {len(axes_list)} are given; expected {panel_count}, one for each panel")
    return axes_list


def format_of(path: Path, option_name: str = "--output") -> str:
    """Returns the picture format of a file suffix. option_name: the option of `path`, for errors."""
    file_suffix = path.suffix.lower().removeprefix(".")
    if file_suffix not in PICTURE_FORMATS:
        suffixes_text = ", ".join(f".{known_format}" for known_format in PICTURE_FORMATS)
        raise InputError(f"{option_name} {path}: its suffix names no format of a picture; expected {suffixes_text}")
    return file_suffix


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """Returns the bytes of a figure in a format. Equal figures give equal bytes."""
    from io import BytesIO

    from matplotlib import rc_context

    metadata_by_format = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    buffer = BytesIO()
    with rc_context(MATPLOTLIB_STYLE):
        figure.savefig(buffer, format=file_format, metadata=metadata_by_format[file_format], dpi=160)
    return buffer.getvalue()
