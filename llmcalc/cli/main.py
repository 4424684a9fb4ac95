"""Runs the command, and reports bad input as one line with exit code 2."""

from __future__ import annotations

import gc
import re
import sys
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from .. import __version__
from ..characters import let_standard_streams_replace_characters
from ..errors import InputError, suggest
from .help import Command, command_summary, printable_help, with_help_all_option, write_examples
from .output import discard_stream, drop_remarks, print_line, print_remarks

COMMANDS = (
    "params",
    "flops",
    "kv",
    "memory",
    "fit",
    "plan",
    "time",
    "serve",
    "cost",
    "plot",
    "compare",
    "diff",
    "shape",
    "explain",
    "explain-log",
    "verify",
    "check",
    "budget",
    "convert",
    "presets",
    "hardware",
    "schema",
    "lock",
    "web",
    "mcp",
)
"""Names of commands: modules of this package with a function `command`, or packages of commands. A module has
underscores for hyphens."""

GARBAGE_COLLECTION_THRESHOLD = 1_000_000
"""Number of new objects after which the garbage collector runs: so many that a short command rarely waits for it."""


EXAMPLE_VALUES = {"TARGET": "llama3-8b", "--hardware": "h100"}
"""Argument or option → the example value that an error shows if it is missing."""


def command_module_name(command: str) -> str:
    """Returns the name of a command's module, which is also the name of the command's Python function."""
    return command.replace("-", "_")


class LazyCommandGroup(TyperGroup):
    """A group of commands that imports each command's module on use.

    parent_command: subpackage of the commands' modules, with a leading dot; empty for this package.
    command_names: names of the commands.
    """

    parent_command = ""
    command_names: tuple[str, ...] = COMMANDS

    def get_help(self, ctx: Any) -> str:
        return printable_help(super().get_help(ctx))

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        write_examples(ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Treats `--help-all` as `--help`, which shows the whole group.

        `help COMMAND` is `COMMAND --help`, and `version` is `--version`.
        """
        first_word, *other_words = args or [""]
        if first_word in ("--help-all", "version"):
            args = ["--version" if first_word == "version" else "--help", *other_words]
        elif first_word == "help":
            args = [*other_words, "--help"]
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.command_names)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the first line of each command's help, without importing the command."""
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (command, command_summary(f"{__package__}{self.parent_command}.{command_module_name(command)}"))
                    for command in self.command_names
                ]
            )

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.command_names:
            # shell completion of an incomplete name, or an option, which typer reports
            if ctx.resilient_parsing or cmd_name.startswith("-"):
                return None
            group_name = f"llmcalc{self.parent_command.replace('.', ' ')}"
            if _is_preset_or_model_file(cmd_name):
                example_command = next(name for name in ("memory", "params") if name in self.command_names)
                raise InputError(
                    f"'{cmd_name}' is a model; expected a command first: {group_name} {example_command} {cmd_name}"
                )
            from ..questions.other_names import OTHER_COMMANDS, llmcalc_spelling

            other_command = llmcalc_spelling(cmd_name.lower(), OTHER_COMMANDS, self.command_names)
            suggestion = (
                f" Did you mean {other_command}?" if other_command else suggest(cmd_name, list(self.command_names))
            )
            raise InputError(f"there is no command '{cmd_name}'.{suggestion} ({group_name} --help lists all)")
        return build_command(self.parent_command, cmd_name)


@cache
def build_command(parent_package: str, command_name: str) -> Any:
    """Imports a command's module and builds the command's options, once per process.

    parent_package: as `LazyCommandGroup.parent_command`.
    """
    module = import_module(f"{parent_package}.{command_module_name(command_name)}", __package__)
    if hasattr(module, "COMMANDS"):
        return typer.main.get_command(_command_group(command_name, module))
    typer_app = typer.Typer(add_completion=False, rich_markup_mode=None)
    typer_app.command(command_name, cls=getattr(module, "COMMAND", Command))(with_help_all_option(module.command))
    gc.freeze()  # imported objects stay: no collection needs to traverse them
    gc.set_threshold(GARBAGE_COLLECTION_THRESHOLD)
    gc.enable()  # `run` has disabled it
    return typer.main.get_command(typer_app)


def _command_group(group_name: str, module: Any) -> typer.Typer:
    """Returns the commands of a package as a group of commands."""
    group_class = type(
        "Inner", (LazyCommandGroup,), {"parent_command": f".{group_name}", "command_names": module.COMMANDS}
    )
    command_group = typer.Typer(
        name=group_name, cls=group_class, no_args_is_help=True, rich_markup_mode=None, add_completion=False
    )
    command_group.callback(help=module.HELP)(lambda: None)
    return command_group


app = typer.Typer(
    cls=LazyCommandGroup,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _print_version(is_requested: bool) -> None:
    if is_requested:
        typer.echo(f"llmcalc {__version__}")
        raise typer.Exit()


@app.callback()
def _main_group(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Exact parameters, FLOPs and bytes of language models,
    with every formula checked against a PyTorch model that runs.
    """


def main() -> None:
    """Runs the `llmcalc` command. Exit codes: 0 success; 1 a check failed; 2 bad usage or bad input."""
    if not sys.argv[1:]:
        sys.argv.append("--help")
    let_standard_streams_replace_characters()
    drop_remarks()
    try:
        exit_code = app(standalone_mode=False, prog_name=_program_name())
    except InputError as error:
        exit_code = _print_error(str(error))
    except (KeyboardInterrupt, typer.Abort):
        drop_remarks()
        exit_code = 130
    except BrokenPipeError:
        exit_code = _handle_closed_pipe()
    except SystemExit as stop:  # typer raises it for a closed pipe
        exit_code = _handle_closed_pipe() if isinstance(stop.__context__, BrokenPipeError) else stop.code
    except OSError as error:
        if error.filename is None:
            discard_stream(sys.stdout)  # else the interpreter may try to write again at its end, and exit with 120
        exit_code = _print_error(f"{error.filename or 'standard output'}: {error.strerror or error}")
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return
        exit_code = _print_error(_usage_message(error))
    print_remarks()
    sys.exit(exit_code or 0)


def _program_name() -> str:
    """Returns the program's name in the shell, for the registration of shell completion."""
    program_name = Path(sys.argv[0]).stem
    return program_name if program_name == "llmcalc-arch" else "llmcalc"


def _print_error(error_message: str) -> int:
    """Prints the error, discards notes that were stored for stderr, and returns exit code 2."""
    drop_remarks()
    print_line(f"error: {error_message}")
    return 2


def _handle_closed_pipe() -> int:
    """Handles a closed output pipe, as in `llmcalc … | head`, and returns exit code 0."""
    discard_stream(sys.stdout)
    return 0


def _option_names(command: Any) -> set[str]:
    return {option_name for parameter in command.params for option_name in parameter.opts}


COMMANDS_OF_RUNS = ("memory", "fit", "time", "plan", "serve", "cost", "flops", "kv")
"""Commands that an error may name for an option that the running command lacks, in the order of preference."""


OPTIONS_OF_FILES = {
    ("check", "--params"): "it compares a checkpoint; llmcalc budget checks numbers, such as params = '<= 8.1B' in a "
    "table [[model]] of llmcalc.toml",
    ("budget", "--max-"): "bounds stand in FILE, such as params = '<= 8.1B' in a table [[model]]",
    ("budget", "--params"): "bounds stand in FILE, such as params = '<= 8.1B' in a table [[model]]",
}
"""(command, start of an unknown option) → advice, for commands that read the option's number from a file."""


def _advice_on_option(command: Any, option_name: str) -> str:
    """Returns what to type instead of an unknown option that other programs use; empty if there is no advice."""
    from ..questions.other_names import engine_name_of_flag
    from .engine_options import EngineCommand

    if advice := OPTIONS_OF_FILES.get((command.name, re.sub("^--(?:max|min)-.*", "--max-", option_name))):
        return advice
    engine_name = engine_name_of_flag(option_name)
    if not engine_name:
        return ""
    if isinstance(command, EngineCommand):
        return f"a flag of an engine needs --engine, such as {engine_name}"
    return f"llmcalc memory, fit and kv take it with --engine {engine_name}"


def _commands_with_option(option_name: str, running_command: str) -> list[str]:
    """Returns the first two commands that have an option which `running_command` does not have."""
    if not option_name.startswith("--"):
        return []
    other_command_names = (command_name for command_name in COMMANDS_OF_RUNS if command_name != running_command)
    names_with_option = (name for name in other_command_names if option_name in _option_names(build_command("", name)))
    return list(islice(names_with_option, 2))


def _is_preset_or_model_file(typed_word: str) -> bool:
    """Whether a word that was typed in place of a command is a preset's name or a model's file."""
    from ..sources.presets import model_names, names_by_alias

    return (
        typed_word in model_names()
        or typed_word in names_by_alias()
        or typed_word.endswith((".json", ".toml", ".gguf", ".safetensors"))
    )


def _advice_on_misread_argument(context: Any, missing_name: str) -> str:
    """Returns the end of an error about a missing argument: which other argument received the typed word, if any."""
    for argument in context.command.params:
        typed_word = context.params.get(argument.name)
        if argument.param_type_name == "argument" and isinstance(typed_word, str):
            is_launch_file = typed_word.lower().endswith((".yaml", ".yml", ".sh", ".py"))
            launch_hint = f" (a launch file: llmcalc memory --launch {typed_word})" if is_launch_file else ""
            return f": '{typed_word}' is read as {argument.metavar}{launch_hint}; expected {missing_name} after it"
    return ""


def _advice_on_surplus_words(extra_words: str, context: Any) -> str:
    """Returns the end of an error about surplus words: what to type instead, or which command has the word."""
    from ..sources.hardware import UnknownAccelerator, find_hardware

    extra_word = extra_words.split(maxsplit=1)[0]
    if extra_word.lower() in ("gb", "gib"):
        return "a size and its unit as one word, such as 24GiB"
    if "--hardware" in _option_names(context.command) and not extra_word.endswith(".toml"):
        for typed_words in dict.fromkeys((extra_words, extra_word)):
            try:
                return f"one accelerator as --hardware {find_hardware(typed_words).name}"
            except UnknownAccelerator:
                continue
            except InputError as error:
                if not typed_words.isdigit():
                    return f"an accelerator as an option ({str(error).removeprefix('--hardware: ')})"
    if not _is_preset_or_model_file(extra_word):
        return "no further argument"
    takes_models = any(parameter.metavar == "TARGET" for parameter in context.command.params)
    return "one model; llmcalc compare takes several" if takes_models else "no model"


def _example_commands(context: Any, missing_parameter: Any) -> str:
    """Returns example commands as the end of an error about a missing option; empty if an argument is missing."""
    if context is None or missing_parameter.param_type_name != "option":
        return ""
    from .examples import EXAMPLES

    examples = EXAMPLES.get(context.command_path.partition(" ")[2], ())
    return f"; for example: {', or '.join(f'llmcalc {example}' for example in examples)}" if examples else ""


def _usage_message(usage_error: Any) -> str:
    """Returns a usage error of typer as one line: the option, the value and the expected values."""
    context = getattr(usage_error, "ctx", None)
    help_hint = f" ({context.command_path} --help explains)" if context is not None else ""
    parameter, message_text = getattr(usage_error, "param", None), usage_error.format_message().rstrip(".")
    if parameter is None and context is not None:
        typed_option, option_names = str(getattr(usage_error, "option_name", "")), _option_names(context.command)
        usual_spelling = typed_option.replace("_", "-")
        from ..questions.other_names import OTHER_OPTION_NAMES, llmcalc_spelling

        option_name = llmcalc_spelling(usual_spelling, OTHER_OPTION_NAMES, option_names)
        if option_name:
            message_text = f"No such option: {typed_option}; expected {option_name}"
        elif typed_option == "--engine":
            message_text = (
                f"No such option: {typed_option}; expected llmcalc fit, memory, time or kv, which know servers"
            )
        elif typed_option == "--model" and any(
            parameter.param_type_name == "argument" for parameter in context.command.params
        ):
            message_text = (
                f"No such option: {typed_option}; expected the model without it: {context.command_path} llama3-8b"
            )
        elif other_commands := _commands_with_option(usual_spelling, context.command.name):
            verb = "has" if len(other_commands) == 1 else "have"
            message_text = f"No such option: {typed_option}; llmcalc {' and '.join(other_commands)} {verb} it"
        elif typed_option.startswith("--") and (advice := _advice_on_option(context.command, usual_spelling)):
            message_text = f"No such option: {typed_option}; {advice}"
        elif extra_words := re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message_text):
            message_text = (
                f"'{extra_words[1]}': {context.command_path} takes {_advice_on_surplus_words(extra_words[1], context)}"
            )
        elif typed_option.startswith("--"):
            suggestion = suggest(typed_option, sorted(option_names))
            message_text = f"No such option: {typed_option}{suggestion and f'.{suggestion}'}"
    if parameter is None:
        return f"{message_text}{help_hint}"
    from .shared_options import typed_option_name

    parameter_name = (
        typed_option_name(parameter)
        if parameter.param_type_name == "option"
        else (parameter.metavar or parameter.name or "").rstrip(".")
    )
    if not usage_error.message:  # nothing was given
        kind_name = f"{parameter.param_type_name} {parameter_name}"
        value_name = f" {parameter.metavar}" if parameter.param_type_name == "option" and parameter.metavar else ""
        example_value = EXAMPLE_VALUES.get(parameter_name)
        example_text = f", such as {example_value}" if example_value else ""
        if context is not None and parameter.param_type_name == "argument":
            example_text = f"{_advice_on_misread_argument(context, parameter_name)}{example_text}"
        return f"missing {kind_name}{value_name}{example_text}{help_hint}{_example_commands(context, parameter)}"
    validation_errors = getattr(usage_error.__cause__, "errors", None)  # pydantic's, where typer has it check values
    if validation_errors is not None:
        from ..sources.files import explain_value

        message_text = explain_value(validation_errors()[0])
    else:
        message_text = usage_error.message
    typed_value, separator, accepted_values = message_text.rstrip(".").replace("'", "").partition(" is not one of ")
    if separator:
        from ..questions.other_names import OTHER_OPTION_NAMES, llmcalc_spelling

        placeholder_value = (
            llmcalc_spelling(f"--{typed_value}", OTHER_OPTION_NAMES, [parameter_name])
            .removeprefix(parameter_name)
            .strip()
        )
        suggestion = (
            f" Did you mean {placeholder_value}?"
            if placeholder_value
            else suggest(typed_value, accepted_values.split(", "))
        )
        message_text = f"'{typed_value}' is not known; expected one of {accepted_values}.{suggestion}"
    return f"{parameter_name}: {message_text.rstrip('.')}"
