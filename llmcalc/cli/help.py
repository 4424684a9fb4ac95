"""Help pages: options in panels, the common ones under `--help` and all under `--help-all`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Container, Iterator, Sequence
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from ..characters import text_in_encoding
from ..errors import InputError
from ..workload.setting import Panel
from .signatures import with_command_signature

PANELS: tuple[str, ...] = get_args(Panel)

OTHER_PANEL = PANELS[0]
"""Name of the help panel for options that state no panel."""

HELP_ALL_KEY = "llmcalc.lists_all"
"""Key in typer's context (`meta`) that marks the help page as that of `--help-all`."""


def printable_help(help_text: str) -> str:
    """Returns a help text without characters that stdout cannot encode, because typer ignores the encoding."""
    return text_in_encoding(help_text, getattr(sys.stdout, "encoding", None) or "utf-8")


def write_examples(context: Any, formatter: Any) -> None:
    """Writes the example commands of a help page, one per line and never wrapped, so that users can copy the lines."""
    from .examples import EXAMPLES

    program_name, _, command_words = context.command_path.partition(" ")
    examples = [f"{program_name} {arguments}\n" for arguments in EXAMPLES.get(command_words, ())]
    examples_heading = "Example: " if len(examples) == 1 else "Examples: "
    if examples:
        formatter.write_paragraph()
        formatter.write(examples_heading + (" " * len(examples_heading)).join(examples))


def option_values(option: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yields the values of an option on a command line."""
    for argument_index, argument in enumerate(arguments):
        option_name, equals_sign, option_value = argument.partition("=")
        if argument == "--":
            return
        if option_name == option and equals_sign:
            yield option_value
        elif argument == option and argument_index + 1 < len(arguments):
            yield arguments[argument_index + 1]


def _with_hyphens_in_names(arguments: Sequence[str], option_names: Container[str]) -> Iterator[str]:
    """Yields arguments with hyphens in option names: `--kv_dtype`, as in Python and engines, becomes `--kv-dtype`."""
    is_option_possible = True
    for argument in arguments:
        is_option_possible &= argument != "--"
        option_name, equals_sign, option_value = argument.partition("=")
        known_option_name = option_name.replace("_", "-")
        is_spelling = is_option_possible and known_option_name.startswith("--") and known_option_name in option_names
        yield f"{known_option_name}{equals_sign}{option_value}" if is_spelling else argument


class Command(TyperCommand):
    """A command whose hidden options only `--help-all` lists."""

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.uncommon: set[str] = {option.name for option in self.params if getattr(option, "hidden", False)}
        for option in self.params:
            if option.name in self.uncommon:
                option.hidden = False  # type: ignore[attr-defined]  # the shell completes it too

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses the arguments after underscores in option names are replaced by hyphens.

        Refuses an option without a value, also where the next option's name stands, which typer would accept.
        """
        valued_options = {
            option_name: not option.is_flag
            for option in self.get_params(ctx)
            if hasattr(option, "is_flag")
            for option_name in (*option.opts, *option.secondary_opts)
        }
        args[:] = _with_hyphens_in_names(args, valued_options)
        for argument, next_argument in zip_longest(args, args[1:]):
            if argument == "--" or ctx.resilient_parsing:  # a shell completes the value
                break
            if valued_options.get(argument) and (next_argument is None or next_argument in valued_options):
                place_text = "" if next_argument is None else f" before {next_argument}"
                raise InputError(f"{argument}: expects a value{place_text} ({ctx.command_path} --help explains)")
        for option in self.get_params(ctx):
            if "--hardware" in option.opts and not getattr(option, "multiple", False):
                accelerator_names = list(option_values("--hardware", args))
                if len(accelerator_names) > 1:  # one needs no import of the accelerators' files
                    from ..sources.hardware import require_one_accelerator

                    require_one_accelerator(accelerator_names)
        return super().parse_args(ctx, args)

    def get_help(self, ctx: Any) -> str:
        return printable_help(super().get_help(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the arguments and the option panels in the order of `PANELS`."""
        rows_by_panel: dict[str, list[tuple[str, str]]] = {}
        shows_all_options = HELP_ALL_KEY in ctx.meta
        for parameter in self.get_params(ctx):
            panel_record = parameter.get_help_record(ctx)
            if panel_record is None or (parameter.name in self.uncommon and not shows_all_options):
                continue
            if parameter.param_type_name == "argument":
                panel, option_label = ARGUMENTS_PANEL, str(parameter.metavar or parameter.name)
            else:
                panel = getattr(parameter, "rich_help_panel", None) or (
                    "Output" if parameter.name in ("help", "help_all") else OTHER_PANEL
                )
                option_label = panel_record[0] if shows_all_options else _option_label(parameter, panel_record[0])
            rows_by_panel.setdefault(panel, []).append(
                (option_label, panel_record[1] if shows_all_options else _first_sentence(panel_record[1]))
            )
        if (
            len(rows_by_panel.keys() - {ARGUMENTS_PANEL}) <= MAX_JOINED_PANELS
        ):  # a command with few options needs no headings
            panels = sorted(rows_by_panel, key=PANEL_ORDER.index)
            all_records = [record for panel in panels if panel != ARGUMENTS_PANEL for record in rows_by_panel[panel]]
            rows_by_panel = {
                panel: panel_records for panel, panel_records in rows_by_panel.items() if panel == ARGUMENTS_PANEL
            } | {OTHER_PANEL: all_records}
        for panel in sorted(rows_by_panel, key=PANEL_ORDER.index):
            with formatter.section(panel):
                formatter.write_dl(rows_by_panel[panel], col_max=OPTION_COLUMN_WIDTH)


ARGUMENTS_PANEL = "Arguments"
PANEL_ORDER = [ARGUMENTS_PANEL, *PANELS]

MAX_JOINED_PANELS = 2
"""Largest number of option panels that a help page shows joined as one panel."""

OPTION_COLUMN_WIDTH = 26
"""Largest width of the column of options; the text of a longer option begins on the next line."""


def _option_label(option: Any, name_and_metavar: str) -> str:
    """Returns an option's one-letter name and first long name, with the placeholder of the option's value."""
    long_names = [shown_name for shown_name in option.opts if shown_name.startswith("--")]
    short_names = [shown_name for shown_name in option.opts if not shown_name.startswith("--")]
    shown_name = min(long_names, key=len) if len(long_names[0]) > OPTION_COLUMN_WIDTH - 8 else long_names[0]
    metavar = "" if option.is_flag else name_and_metavar.rpartition(" ")[2]
    return " ".join(filter(None, (", ".join([*short_names, shown_name]), metavar)))


def _first_sentence(full_text: str) -> str:
    """Returns the first sentence of an option's help text, followed by the default value if the text states one."""
    help_text, end_mark, default_text = full_text.partition(" [default: ")
    first_sentence = re.split(r"(?<=\.) |(?<=…) (?=[A-Z])", help_text.strip(), maxsplit=1)[0]
    return f"{first_sentence.rstrip('.')}{end_mark}{default_text}"


def _show_all_options(ctx: typer.Context, is_requested: bool) -> None:
    if is_requested and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL_KEY] = True
        typer.echo(ctx.get_help())
        raise typer.Exit()


def with_help_all_option(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the option `--help-all` to a command."""
    signature = inspect.signature(command)
    help_all_option = typer.Option(
        "--help-all",
        is_eager=True,
        callback=_show_all_options,
        help="Show every option and exit.",
        rich_help_panel="Output",
    )
    help_all_parameter = inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, help_all_option]
    )

    def run(*, help_all: bool = False, **typed_values: Any) -> None:
        command(**typed_values)

    type_hints = get_type_hints(command, include_extras=True)
    parameters = [
        argument.replace(
            kind=inspect.Parameter.KEYWORD_ONLY, annotation=type_hints.get(argument_name, argument.annotation)
        )
        for argument_name, argument in signature.parameters.items()
    ]
    return with_command_signature(run, command, [*parameters, help_all_parameter])


def command_summary(module_name: str) -> str:
    """Returns the first line of a command's help from the source file, without importing the command.

    module_name: full name of the command's module, or of a package of commands.
    """
    module_spec = find_spec(module_name)
    if module_spec is None or module_spec.origin is None:
        return ""
    for statement in ast.parse(Path(module_spec.origin).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.FunctionDef) and statement.name == "command":
            return (ast.get_docstring(statement) or "").partition("\n")[0]
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", "") == "HELP":
            return str(ast.literal_eval(statement.value)).partition("\n")[0]
    return ""
