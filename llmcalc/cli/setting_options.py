"""Options of commands, made from the declarations of settings (`workload/setting.py`).

A decorator gives a command many options in the place of one parameter, which gets their values as one object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

import typer

from ..workload.setting import Declared, Setting, declared
from .signatures import with_signature

CommandFunction: TypeAlias = Callable[..., None]


class OptionOfCommand(NamedTuple):
    """annotation: the type and typer's option. default: of the parameter."""

    annotation: Any
    default: Any


def option_of(found: Declared, default: Any = None, **changes: Any) -> OptionOfCommand:
    """The option of a setting. changes: fields of `Setting` that differ in this command.

    default: of the parameter, where the command has one of its own.
    """
    setting: Setting = found.setting._replace(**changes)
    found = found._replace(setting=setting)
    help = f"{setting.help} [default: {setting.default}]" if setting.default else setting.help
    names = (found.option, *setting.spellings)
    common: dict[str, Any] = {
        "help": help,
        "show_default": False,
        "rich_help_panel": setting.panel,
        "hidden": not setting.common,
    }

    def checked(option: typer.CallbackParam, value: Any) -> Any:
        return found.checked(value, option.opts[0])

    if found.kind is bool:
        names = (f"{found.option}/{setting.off}",) if setting.off else names
        return OptionOfCommand(Annotated[bool | None, typer.Option(*names, **common)], default)
    metavar = setting.metavar or ("|".join(found.words) if found.words else "N" if found.kind is int else "TEXT")
    words: Iterable[str] = found.words
    complete = setting.complete or (lambda: words)
    typed = typer.Option(
        *names,
        metavar=metavar,
        parser=str,  # the callback checks, with one message for every command and for Python
        callback=checked,
        autocompletion=lambda incomplete: [word for word in complete() if word.startswith(incomplete.lower())],
        **common,
    )
    return OptionOfCommand(Annotated[str | None, typed], default)


def options_of(settings: type) -> dict[str, OptionOfCommand]:
    """The options of a class's settings."""
    return {name: option_of(found, getattr(settings, name)) for name, found in declared(settings).items()}


def takes(
    parameter: str, options: Mapping[str, OptionOfCommand], made: Callable[[dict[str, Any]], Any]
) -> Callable[[CommandFunction], CommandFunction]:
    """Gives a command these options in the place of one of its parameters.

    parameter: its name; it gets what `made` returns of the options' values.
    """

    def changed(command: CommandFunction) -> CommandFunction:
        signature = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for name, found in signature.parameters.items():
            if name != parameter:
                parameters.append(found.replace(annotation=hints[name]))
                continue
            parameters += [
                inspect.Parameter(each, found.kind, default=option.default, annotation=option.annotation)
                for each, option in options.items()
            ]

        def run(**given: Any) -> None:
            command(**{parameter: made({each: given.pop(each) for each in options})}, **given)

        return with_signature(run, command, parameters)

    return changed
