"""The option `--engine` of commands, and the command line with it: an engine's own flags beside options of llmcalc."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

import typer

from .help import Command

VALUES = "llmcalc.engine_flags"
"""Key of the engine's flags in the context's `meta`."""

ENGINE_HELP = (
    "A serving engine: vllm, vllm==0.19, sglang, llama.cpp, ik_llama.cpp, ollama. Its own flags are options then "
    "(--max-model-len, -ngl, …), and --hardware is needed. Repeatable, to compare versions."
)

EngineOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--engine", metavar="NAME[==VERSION]", help=ENGINE_HELP, show_default=False, rich_help_panel="What runs"
    ),
]

SHARED_OPTIONS = (
    "engine", "hardware", "quantize", "overrides", "head", "allow_unknown", "offline", "notes", "fmt", "output",
    "table", "help", "help_all",
)  # fmt: skip
"""Parameters of commands that are options with an engine too."""


class EngineCommand(Command):
    """A command with `--engine`. Where it is given, flags of the engine are taken out before options are parsed.

    beside_engines: parameters of the command that are options with an engine too (class attribute).
    """

    beside_engines: tuple[str, ...] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        engines = list(_engines(args))
        if engines:
            from ..frameworks.engines.flags import split_arguments
            from ..frameworks.engines.registry import engine_and_version

            record, _ = engine_and_version(engines[0])
            args, values = split_arguments(
                record.title, record.known_flags(), args, self._llmcalc_options(ctx), record.instead
            )
            ctx.meta[VALUES] = values
        return super().parse_args(ctx, args)

    def _llmcalc_options(self, ctx: Any) -> dict[str, bool]:
        """Returns the options that stay → whether they take a value."""
        names = (*SHARED_OPTIONS, *self.beside_engines)
        return {
            name: not option.is_flag
            for option in self.get_params(ctx)
            if option.name in names and hasattr(option, "is_flag")
            for name in (*option.opts, *option.secondary_opts)
        }


def _engines(args: Sequence[str]) -> Iterable[str]:
    """Yields the values of `--engine` on a command line."""
    for i, argument in enumerate(args):
        name, mark, value = argument.partition("=")
        if argument == "--":
            return
        if name == "--engine" and mark:
            yield value
        elif argument == "--engine" and i + 1 < len(args):
            yield args[i + 1]


def engine_flags(context: typer.Context) -> Mapping[str, Any]:
    """Returns the flags of the engine that the command line has."""
    values: Mapping[str, Any] = context.meta.get(VALUES, {})
    return values
