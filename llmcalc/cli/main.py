"""Finds the command, runs it, and turns whatever is wrong with the input into one line and exit code 2."""

from __future__ import annotations

import gc
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..characters import make_streams_whole
from ..errors import InputError, suggest
from .help import Command, printable_help, summary_of, with_help_all
from .output import discard, drop_remarks, print_line, print_remarks

COMMANDS = (
    "params",
    "flops",
    "kv",
    "memory",
    "fit",
    "plan",
    "plot",
    "compare",
    "diff",
    "shape",
    "explain",
    "verify",
    "check",
    "budget",
    "convert",
    "presets",
    "hardware",
    "schema",
    "web",
)
"""Each has a module of that name in this package with a function `command`, or is a package with several."""


class LazyGroup(TyperGroup):
    """Loads a command's module only when that command, or the list of all, is asked for.

    within: the package of the commands' modules, below this one's. commands: their names.
    """

    within = ""
    names: tuple[str, ...] = COMMANDS

    def get_help(self, ctx: Any) -> str:
        return printable_help(super().get_help(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.names)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The first line of each command's help, without loading the command."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary_of(f"{__package__}{self.within}.{name}")) for name in self.names])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.names:
            if ctx.resilient_parsing or cmd_name.startswith(
                "-"
            ):  # completing what is half typed; an option, which typer answers
                return None
            raise InputError(
                f"there is no command '{cmd_name}'.{suggest(cmd_name, list(self.names))} "
                f"(llmcalc{self.within.replace('.', ' ')} --help lists all)"
            )
        module = import_module(f"{self.within}.{cmd_name}", __package__)
        if hasattr(module, "COMMANDS"):
            return typer.main.get_command(_several(cmd_name, module))
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(cmd_name, cls=Command)(with_help_all(module.command))
        gc.freeze()  # what has been imported stays: no collection needs to look at it
        gc.enable()  # which `run` has put off
        return typer.main.get_command(app)


def _several(name: str, module: Any) -> typer.Typer:
    """The commands of a package as one command of that name."""
    inner = type("Inner", (LazyGroup,), {"within": f".{name}", "names": module.COMMANDS})
    group = typer.Typer(name=name, cls=inner, no_args_is_help=True, rich_markup_mode=None, add_completion=False)
    group.callback(help=module.HELP)(lambda: None)
    return group


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"llmcalc {__version__}")
        raise typer.Exit()


@app.callback()
def _group(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exact parameters, FLOPs and bytes of language models,
    with every formula checked against a PyTorch model that runs.
    """


def main() -> None:
    """The `llmcalc` command. Exit codes: 0 fine; 1 the check asked for failed; 2 bad usage or bad input."""
    if not sys.argv[1:]:
        sys.argv.append("--help")
    make_streams_whole()
    drop_remarks()
    try:
        code = app(standalone_mode=False, prog_name=_name())
    except InputError as error:
        code = _fail(str(error))
    except (KeyboardInterrupt, typer.Abort):
        drop_remarks()
        code = 130
    except BrokenPipeError:
        code = _reader_gone()
    except SystemExit as stop:  # what typer makes of a reader that has gone
        code = _reader_gone() if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except OSError as error:
        code = _fail(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return
        code = _fail(_usage(error))
    print_remarks()
    sys.exit(code or 0)


def _name() -> str:
    """The name that the command was called by, of its two: completion is registered for it."""
    called = Path(sys.argv[0]).stem
    return called if called == "llmcalc-arch" else "llmcalc"


def _fail(message: str) -> int:
    """Prints the error, alone: a remark on a file is of no use beside the reason why nothing is answered."""
    drop_remarks()
    print_line(f"error: {message}")
    return 2


def _reader_gone() -> int:
    """`llmcalc … | head`: the reader of our output has gone, and nothing is left to say."""
    discard(sys.stdout)
    return 0


def _usage(error: Any) -> str:
    """One of typer's usage errors in one line of ours: the option, what was given, what was expected."""
    context = getattr(error, "ctx", None)
    where = f" ({context.command_path} --help explains)" if context is not None else ""
    parameter, message = getattr(error, "param", None), error.format_message().rstrip(".")
    if parameter is None:
        return f"{message}{where}"
    name = (
        max(parameter.opts, key=len)
        if parameter.param_type_name == "option"
        else (parameter.metavar or parameter.name or "").rstrip(".")
    )
    if not error.message:  # nothing was given
        return f"missing argument {name}{where}"
    details = getattr(error.__cause__, "errors", None)  # pydantic's, where typer has it check values
    if details is not None:
        from ..sources.files import reason

        message = reason(details()[0])
    else:
        message = error.message
    given, choice, known = message.rstrip(".").replace("'", "").partition(" is not one of ")
    if choice:
        message = f"'{given}' is not known; expected one of {known}.{suggest(given, known.split(', '))}"
    return f"{name}: {message.rstrip('.')}"
