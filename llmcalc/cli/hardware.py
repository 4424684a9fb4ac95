from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

from ..accelerator import Hardware
from ..reports.hardware import report
from ..sources.hardware import find_hardware, hardware_names, load_hardware
from .options import FormatOption, NotesOption, Output, show


def complete_name(incomplete: str) -> list[str]:
    """Accelerators' names for the shell's completion."""
    return [name for name in hardware_names() if name.startswith(incomplete.lower())]


def accelerators(names: list[str] | None) -> list[Hardware]:
    """The accelerators of these names; one that is named twice, by another alias, once."""
    found: list[Hardware] = []
    for one in map(find_hardware, names or ()):
        found += [] if one in found else [one]
    return found


OneAccelerator: TypeAlias = Annotated[
    str,
    typer.Option(
        "--hardware",
        metavar="NAME",
        help="The accelerator: a name (h100, m4-max-64gb), a memory size (24GiB) or a .toml file.",
        autocompletion=complete_name,
        show_default=False,
    ),
]

Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME",
        help="Accelerators to show in full: a name or alias, a memory size such as 24GiB, or a .toml file of your own; "
        "default: a list of all.",
        autocompletion=complete_name,
        show_default=False,
    ),
]


def command(
    names: Names = None,
    notes: NotesOption = False,
    fmt: FormatOption = "table",
    output: Output = None,
) -> None:
    """Accelerators: memory, bandwidths, dense peak FLOP/s.
    With names: every figure, and where each one is from.
    """
    chosen = [find_hardware(name) for name in names] if names else [load_hardware(name) for name in hardware_names()]
    show(report(chosen, details=bool(names)), fmt, output, notes or bool(names))
