"""Makes figures and writes them to files."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, MissingExtra

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
    """An empty figure in the house style, which no window shows. width, height: inches."""
    needs_matplotlib()
    from matplotlib import rc_context

    with rc_context(STYLE):
        return _notebook_figure()(figsize=(width, height), layout="constrained", **kwargs)


@cache
def _notebook_figure() -> type[Figure]:
    """Figures that a notebook shows by themselves, without pyplot and its backends."""
    from matplotlib.figure import Figure

    class NotebookFigure(Figure):
        def _repr_svg_(self) -> str:
            return rendered(self, "svg").decode()

    return NotebookFigure


def panels(axes: Any, count: int) -> list[Axes]:
    """The axes that a picture of so many panels is to be drawn on, from the upper left, row by row.

    axes: as `figure.subplots` returns them, or a list. Raises `InputError` for another number of them.
    """
    import numpy

    found = list(numpy.ravel(axes))
    if len(found) != count:
        raise InputError(f"ax: {len(found)} are given; expected {count}, one for each panel")
    return found


def format_of(path: Path) -> str:
    """The format that a file's suffix names. Raises `InputError` for another suffix."""
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        known = ", ".join(f".{one}" for one in FORMATS)
        raise InputError(f"--output {path}: its suffix names no format of a picture; expected {known}")
    return suffix


def rendered(figure: Figure, kind: str) -> bytes:
    """A figure as a file of that format; equal figures are equal files."""
    from io import BytesIO

    from matplotlib import rc_context

    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    data = BytesIO()
    with rc_context(STYLE):
        figure.savefig(data, format=kind, metadata=dates[kind], dpi=160)
    return data.getvalue()
