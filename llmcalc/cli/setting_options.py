"""Builds command-line options from the settings that fields of option classes declare (`workload/setting.py`).

A decorator replaces one parameter of a command by many options. The parameter gets their values as one object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, get_type_hints

import typer

from ..workload.inputs import Inputs
from ..workload.setting import DeclaredSetting, declarations_of
from .shared_options import shell_completion_of, typed_option_name
from .signatures import with_command_signature

CommandFunction: TypeAlias = Callable[..., None]


class CommandOption(NamedTuple):
    """A typer option for a command's parameter. annotation: the type and typer's option. default: the default value."""

    annotation: Any
    default: Any


def option_without_default(value_type: Any, option: Any) -> CommandOption:
    """Returns a command's parameter with default None. value_type: the parameter's type. option: typer's option."""
    annotated_type: Any = Annotated
    return CommandOption(annotated_type[value_type | None, option], None)


def option_of_setting(declaration: DeclaredSetting, default_value: Any = None, **changed_fields: Any) -> CommandOption:
    """Returns the command-line option for a setting.

    default_value: default of the parameter.
    changed_fields: fields of `Setting` that differ in this command.
    """
    setting = replace(declaration.setting, **changed_fields)
    declaration = replace(declaration, setting=setting)
    help_text = f"{setting.help} [default: {setting.default}]" if setting.default else setting.help
    option_names = (declaration.option, *setting.spellings)
    common_arguments: dict[str, Any] = {
        "help": help_text,
        "show_default": False,
        "rich_help_panel": setting.panel,
        "hidden": not setting.is_common,
    }

    def check_value(option: typer.CallbackParam, typed_value: Any) -> Any:
        return declaration.checked_value(typed_value, typed_option_name(option))

    if declaration.value_type is bool:
        option_names = (f"{declaration.option}/{setting.negative_option}",) if setting.negative_option else option_names
        return CommandOption(Annotated[bool | None, typer.Option(*option_names, **common_arguments)], default_value)
    if declaration.value_type is Path:
        return option_without_default(Path, typer.Option(*option_names, metavar=setting.metavar, **common_arguments))
    placeholder = {int: "N", float: "P"}.get(declaration.value_type, "TEXT")
    metavar = setting.metavar or "|".join(declaration.allowed_words) or placeholder
    possible_words: Iterable[str] = declaration.allowed_words
    typer_option = typer.Option(
        *option_names,
        metavar=metavar,
        parser=str,  # the callback checks, with one message for every command and for Python
        callback=check_value,
        autocompletion=shell_completion_of(setting.completions or (lambda: possible_words)),
        **common_arguments,
    )
    return CommandOption(Annotated[str | None, typer_option], default_value)


def options_of_settings(settings: type, field_names: Iterable[str] = ()) -> dict[str, CommandOption]:
    """Returns the options for the settings of a class. field_names: the settings' names, empty for all."""
    declarations = declarations_of(settings)
    return {
        field_name: option_of_setting(declarations[field_name], getattr(settings, field_name))
        for field_name in field_names or declarations
    }


def replace_parameter_by_options(
    parameter_name: str, options: Mapping[str, CommandOption], build_argument: Callable[[dict[str, Any]], Any]
) -> Callable[[CommandFunction], CommandFunction]:
    """Returns a decorator that replaces a parameter of a command by options.

    parameter_name: name of the parameter.
    options: name → option.
    build_argument: function of the options' values that returns the value of the parameter.
    """

    def decorate_command(command: CommandFunction) -> CommandFunction:
        signature = inspect.signature(command)
        type_hints = get_type_hints(command, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for argument_name, argument in signature.parameters.items():
            if argument_name != parameter_name:
                parameters.append(argument.replace(annotation=type_hints[argument_name]))
                continue
            parameters += [
                inspect.Parameter(setting_name, argument.kind, default=option.default, annotation=option.annotation)
                for setting_name, option in options.items()
            ]

        def run(**typed_values: Any) -> None:
            command(
                **{
                    parameter_name: build_argument(
                        {setting_name: typed_values.pop(setting_name) for setting_name in options}
                    )
                },
                **typed_values,
            )

        return with_command_signature(run, command, parameters)

    return decorate_command


def replace_parameter_by_settings(
    parameter_name: str, settings: type, field_names: Iterable[str] = ()
) -> Callable[[CommandFunction], CommandFunction]:
    """Returns a decorator that replaces a parameter of a command by the options for a class of settings.

    The parameter gets an object of the class. field_names: the settings' names, empty for all.
    """
    return replace_parameter_by_options(
        parameter_name, options_of_settings(settings, field_names), lambda chosen: settings(**chosen)
    )


def add_input_options(command: CommandFunction) -> CommandFunction:
    """Replaces the parameter `inputs` of a command by the options of images and audio."""
    return replace_parameter_by_settings("inputs", Inputs)(command)
