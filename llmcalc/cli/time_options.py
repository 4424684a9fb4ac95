"""Options of time that `time` and `plan` share."""

from __future__ import annotations

from typing import Annotated, TypeAlias

import typer

STACK_HELP = (
    "Software whose fusion, overlap and host times are priced (maxtext, gpt-fast, …; a wrong name lists all). Default "
    "that of the framework or the engine."
)

Stack: TypeAlias = Annotated[
    str | None,
    typer.Option("--stack", metavar="NAME", help=STACK_HELP, show_default=False, rich_help_panel="Hardware"),
]

Overlap: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--overlap",
        metavar="none|dp|tp|all",
        help="Messages that run beside products: of gradients (dp), of tensor parallelism (tp); default as the stack.",
        show_default=False,
        rich_help_panel="Hardware",
        hidden=True,
    ),
]

NicRate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--nic",
        metavar="GB/s",
        help="Network of each device beyond its scale-up domain; default as the accelerator's record.",
        show_default=False,
        rich_help_panel="Hardware",
        hidden=True,
    ),
]

Calibrate: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--calibrate",
        metavar="CSV",
        help="Your own measured runs, on which the stack is fitted. A row has columns named as options of time (phase, "
        "users, seq, tp, …) and seconds; a fit that would not help is refused.",
        show_default=False,
        rich_help_panel="Hardware",
    ),
]
