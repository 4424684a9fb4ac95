"""The help pages: options in panels, the common ones with `--help` and all with `--help-all`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from ..characters import fitted
from ..workload.setting import Panel
from .signatures import with_signature

PANELS: tuple[str, ...] = get_args(Panel)

OTHER = "Options"
"""The panel of options that name none."""


def printable_help(text: str) -> str:
    """Help as stdout can hold it; typer would write UTF-8 to a stream of ASCII."""
    return fitted(text, getattr(sys.stdout, "encoding", None) or "utf-8")


class Command(TyperCommand):
    """One command. An option that is declared as hidden is one that `--help` leaves to `--help-all`."""

    lists_all = False
    """Whether the page that is written is that of `--help-all`."""

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.uncommon = {option.name for option in self.params if getattr(option, "hidden", False)}
        for option in self.params:
            if option.name in self.uncommon:
                option.hidden = False  # type: ignore[attr-defined]  # the shell completes it too

    def get_help(self, ctx: Any) -> str:
        return printable_help(super().get_help(ctx))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Arguments, then the options of each panel, in the order of `PANELS`."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for found in self.get_params(ctx):
            record = found.get_help_record(ctx)
            if record is None or (found.name in self.uncommon and not self.lists_all):
                continue
            if found.param_type_name == "argument":
                panel, name = ARGUMENTS, str(found.metavar or found.name)
            else:
                panel = getattr(found, "rich_help_panel", None) or ("Output" if _is_help(found) else OTHER)
                name = record[0] if self.lists_all else _short_name(found, record[0])
            panels.setdefault(panel, []).append((name, record[1] if self.lists_all else _first_sentence(record[1])))
        if len(panels.keys() - {ARGUMENTS}) <= FEW_PANELS:  # a command of few options has no need of headings
            rest = [record for name in sorted(panels, key=ORDER.index) if name != ARGUMENTS for record in panels[name]]
            panels = {name: records for name, records in panels.items() if name == ARGUMENTS} | {OTHER: rest}
        for panel in sorted(panels, key=ORDER.index):
            with formatter.section(panel):
                formatter.write_dl(panels[panel], col_max=COLUMN)


ARGUMENTS = "Arguments"
ORDER = [ARGUMENTS, OTHER, *PANELS]

FEW_PANELS = 2
"""So few panels of options are one."""

COLUMN = 26
"""Columns of the names of options, at most; the text of a longer one begins on the next line."""


def _short_name(option: Any, record: str) -> str:
    """The shortest spelling of one dash and the first of two, with what stands for the value."""
    dashed = [name for name in option.opts if name.startswith("--")]
    letters = [name for name in option.opts if not name.startswith("--")]
    name = min(dashed, key=len) if len(dashed[0]) > COLUMN - 8 else dashed[0]
    metavar = "" if option.is_flag else record.rpartition(" ")[2]
    return " ".join(filter(None, (", ".join([*letters, name]), metavar)))


def _first_sentence(help: str) -> str:
    """The first sentence of a help, and its default."""
    text, mark, default = help.partition(" [default: ")
    first = re.split(r"(?<=\.) |(?<=…) (?=[A-Z])", text.strip(), maxsplit=1)[0]
    return f"{first.rstrip('.')}{mark}{default}"


def _is_help(option: Any) -> bool:
    return option.name in ("help", "help_all")


def _show_all(ctx: typer.Context, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.command.lists_all = True  # type: ignore[attr-defined]
        typer.echo(ctx.get_help())
        raise typer.Exit()


def with_help_all(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the option `--help-all`."""
    signature = inspect.signature(command)
    option = typer.Option(
        "--help-all", is_eager=True, callback=_show_all, help="Show every option and exit.", rich_help_panel="Output"
    )
    parameter = inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option]
    )

    def run(*, help_all: bool = False, **given: Any) -> None:
        command(**given)

    hints = get_type_hints(command, include_extras=True)
    parameters = [
        found.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints.get(name, found.annotation))
        for name, found in signature.parameters.items()
    ]
    return with_signature(run, command, [*parameters, parameter])


def summary_of(module: str) -> str:
    """The first line of a command's help, read from its source: listing all commands imports none of them.

    module: the full name of the command's module, or of the package of several commands.
    """
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        return ""
    for found in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(found, ast.FunctionDef) and found.name == "command":
            return (ast.get_docstring(found) or "").partition("\n")[0]
        if isinstance(found, ast.Assign) and getattr(found.targets[0], "id", "") == "HELP":
            return str(ast.literal_eval(found.value)).partition("\n")[0]
    return ""
