"""The option `--engine`, and command lines that mix an engine's own flags with llmcalc's options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ..errors import InputError
from .help import Command, option_values
from .shared_options import value_option

if TYPE_CHECKING:
    from ..frameworks.engines.engine import Engine
    from ..questions.engines import EngineQuestion
    from ..reports.answer import ReportedAnswer
    from .target_options import OutputOptions, TargetOptions

ENGINE_FLAGS_KEY = "llmcalc.engine_flags"
"""Key of the engine's flags in the context's `meta`."""

ENGINE_HELP = (
    "A serving engine: vllm, vllm==0.19, sglang, tensorrt-llm, llama.cpp, ik_llama.cpp, ollama. Its own flags are "
    "options then (--max-model-len, -ngl, …), and --hardware is needed. Repeatable, to compare versions."
)

EngineOption: TypeAlias = Annotated[
    list[str] | None, value_option("--engine", "NAME[==VERSION]", ENGINE_HELP, panel="What runs")
]

ReceiptOption: TypeAlias = Annotated[
    str | None,
    value_option(
        "--receipt",
        "FILE",
        "With --engine: a start-up log, whose measured terms stand in place of estimates (see explain-log).",
        panel="What runs",
        hidden=True,
    ),
]

SHARED_OPTIONS = (
    "engine", "launch", "receipt", "hardware", "quantize", "overrides", "head", "allow_unknown", "offline", "notes",
    "fmt", "output", "table", "help", "help_all",
)  # fmt: skip
"""Parameters of commands whose options also apply together with `--engine`."""


class EngineCommand(Command):
    """A command with `--engine`, which extracts the engine's flags before the options are parsed.

    options_with_engines: parameters of the command that are options with an engine too (class attribute).
    """

    options_with_engines: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        engine_texts = list(option_values("--engine", args)) or self._launched_engines(args)
        if engine_texts:
            from ..frameworks.engines.flags import split_arguments
            from ..frameworks.engines.registry import engine_and_version
            from ..questions.other_names import OTHER_OPTION_NAMES, llmcalc_spelling

            engine_name, _ = engine_and_version(engine_texts[0])
            takes_value_by_option = self._llmcalc_options(ctx)
            option_names = [argument.partition("=")[0] for argument in args if argument.startswith("-")]
            spelling_by_option = {
                name: llmcalc_spelling(name, OTHER_OPTION_NAMES, takes_value_by_option) for name in option_names
            }
            remaining_arguments, flag_values = split_arguments(
                engine_name.title,
                engine_name.known_flags(),
                args,
                takes_value_by_option,
                engine_name.flags_by_option,
                alternatives_by_flag={
                    option_name: spelling for option_name, spelling in spelling_by_option.items() if spelling
                }
                | dict(engine_name.alternatives_by_option),
            )
            self._refuse_short_engine_flags(ctx, engine_name, args)
            args = remaining_arguments
            ctx.meta[ENGINE_FLAGS_KEY] = flag_values
        try:
            return super().parse_args(ctx, [*args])  # which removes what it has parsed
        except Exception as usage_error:
            if hasattr(usage_error, "option_name"):  # it may be a flag of an engine that the launch file would name
                _require_readable_launch(args)
            raise

    def _refuse_short_engine_flags(self, context: Any, engine_record: Engine, arguments: Sequence[str]) -> None:
        """Raises `InputError` if a typed short option of llmcalc is also a memory-neutral flag of the engine."""
        from ..frameworks.engines.flags import flags_by_spelling

        flags_by_name = flags_by_spelling(engine_record.known_flags())
        for option in self.get_params(context):
            for option_name in option.opts:
                engine_flag = flags_by_name.get(option_name)
                if (
                    option_name.startswith("--")
                    or engine_flag is None
                    or not engine_flag.is_memory_neutral
                    or not any(option_values(option_name, arguments))
                ):
                    continue
                alternatives_text = "".join(
                    f" or {min(flags_by_name[flag_name].names, key=len)}"
                    for flag_name in engine_record.flags_by_option.get(option.opts[0], "").split()
                )
                raise InputError(
                    f"{option_name}: is {engine_flag.names[0]} of {engine_record.title}, "
                    f"which changes no memory; expected {option.opts[0]}{alternatives_text}, or remove it"
                )

    def _launched_engines(self, arguments: Sequence[str]) -> list[str]:
        """Returns the engine that all servers of a launch file use; empty without a file or if the engines differ."""
        launch_files = list(option_values("--launch", arguments))
        if not launch_files:
            return []
        from ..frameworks.server_files.read import engines_of_file

        engine_names = engines_of_file(launch_files[-1])
        return engine_names if len(engine_names) == 1 else []

    def _llmcalc_options(self, context: Any) -> dict[str, bool]:
        """Returns a mapping from each llmcalc option of the command to whether the option takes a value."""
        llmcalc_names = (*SHARED_OPTIONS, *self.options_with_engines)
        return {
            option_name: not option.is_flag
            for option in self.get_params(context)
            if option.name in llmcalc_names and hasattr(option, "is_flag")
            for option_name in (*option.opts, *option.secondary_opts)
        }


def _require_readable_launch(arguments: Sequence[str]) -> None:
    """Raises `InputError` for a launch file that cannot be read."""
    from ..frameworks.server_files.read import starts_any_server

    for launch_file in option_values("--launch", arguments):
        starts_any_server(launch_file)


def require_engine(receipt: str | None, engine: Sequence[str] | None, launch_file: Path | None = None) -> None:
    """Raises `InputError` for `--receipt` (a measured start-up) without an engine, or together with a launch file."""
    if receipt and launch_file is not None:
        raise InputError("--receipt: does not apply to a launch file; remove it, or write the file's flags yourself")
    if receipt and not engine:
        raise InputError("--receipt: only applies to an engine; add --engine, such as --engine vllm")


def engine_flags(context: typer.Context) -> Mapping[str, Any]:
    """Returns the serving engine's flags that were typed on the command line, keyed by the flag's name."""
    flag_values: Mapping[str, Any] = context.meta.get(ENGINE_FLAGS_KEY, {})
    return flag_values


def print_server_answers(
    ask_question: Callable[[EngineQuestion], ReportedAnswer],
    context: typer.Context,
    hardware: str | None,
    target_options: TargetOptions,
    output_options: OutputOptions,
) -> None:
    """Prints the answers for a launch file's servers or for engines that serve TARGET; exits with 1 if a check fails.

    ask_question: the question that is asked of each. context: the running command, whose options describe the servers.
    hardware: the accelerator; None for that of the launch file.
    """
    from ..questions.engines import ask_servers, engine_questions
    from ..sources.preset import target_in_errors

    launch_file, table_name, target, engine_names = (
        context.params[parameter_name] for parameter_name in ("launch", "table", "target", "engine")
    )
    if launch_file is None and not target:
        raise InputError(f"missing argument TARGET ({context.command_path} --help explains)")
    server_questions = engine_questions(
        launch_file,
        target_options.load,
        target=target,
        engine_names=engine_names or (),
        flag_values=engine_flags(context),
        hardware=hardware,
        quantize=context.params["quantize"],
        receipt=context.params["receipt"],
        allow_unknown=target_options.allow_unknown,
    )
    with nullcontext() if launch_file is not None else target_in_errors(server_questions[0].preset):
        servers_answer = ask_servers(server_questions, ask_question)
    output_options.show_answer(
        servers_answer, table_name, None if launch_file is not None else server_questions[0].preset
    )
