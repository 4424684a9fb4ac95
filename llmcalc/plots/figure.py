"""Creates figures and writes them to files."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import InputError, MissingExtra
from ..reports.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("svg", "png", "pdf")
"""Suffixes of the files that a picture can be written to."""

STYLE = {
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


def needs_matplotlib() -> None:
    """Raises `MissingExtra` if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtra("a plot", "matplotlib", "plot") from None


def new_figure(width: float, height: float, **kwargs: Any) -> Figure:
    """Creates an empty figure in llmcalc's style, without a window. width, height: inches."""
    needs_matplotlib()
    from matplotlib import rc_context

    with rc_context(STYLE):
        return _notebook_figure()(figsize=(width, height), layout="constrained", **kwargs)


DrawFigure = TypeVar("DrawFigure", bound=Callable[..., Any])


def in_style(draw: DrawFigure) -> DrawFigure:
    """Returns the drawing function so that it draws in llmcalc's style. Raises `MissingExtra` without matplotlib."""

    @wraps(draw)
    def draw_in_style(*args: Any, **kwargs: Any) -> Any:
        needs_matplotlib()
        from matplotlib import rc_context

        with rc_context(STYLE):
            return draw(*args, **kwargs)

    return draw_in_style  # type: ignore[return-value]


def draw_heading(figure: Figure, text: str) -> None:
    """Writes the heading of a figure above its panels, from the left edge on."""
    figure.suptitle(text, x=0.01, ha="left", color=INK, fontsize=12, fontweight="bold")


@cache
def _notebook_figure() -> type[Figure]:
    """Returns a class of figures that a notebook displays, without importing pyplot and its backends."""
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


def format_of(path: Path, option: str = "--output") -> str:
    """Returns the format of a file's suffix. Raises `InputError` for an unknown suffix. option: the file's option."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        known_suffixes = ", ".join(f".{suffix_name}" for suffix_name in FORMATS)
        raise InputError(f"{option} {path}: its suffix names no format of a picture; expected {known_suffixes}")
    return suffix


def figure_bytes(figure: Figure, file_format: str) -> bytes:
    """Returns the bytes of a figure in a format; equal figures give equal bytes."""
    from io import BytesIO

    from matplotlib import rc_context

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    buffer = BytesIO()
    with rc_context(STYLE):
        figure.savefig(buffer, format=file_format, metadata=dates[file_format], dpi=160)
    return buffer.getvalue()
