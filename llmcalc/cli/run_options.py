"""Command-line options for the settings of a run on one device, with one-letter and short names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

from ..device_memory.settings import SETTINGS_BY_SHORTHAND, Settings, settings_with_shorthands
from ..workload.setting import declarations_of
from .setting_options import CommandOption, option_of_setting, options_of_settings, replace_parameter_by_options
from .shared_options import value_option

CublasWorkspaceOption: TypeAlias = Annotated[
    str | None,
    value_option(
        "--cublas-workspace",
        ":KIB:COUNT",
        "CUBLAS_WORKSPACE_CONFIG of the run, such as :4096:8. [default: as torch chooses for the accelerator]",
        panel="Hardware",
        hidden=True,
    ),
]


def settings_options(**defaults: str) -> dict[str, CommandOption]:
    """Returns the command-line options for all fields of `Settings`, with their short names.

    Without a phase option, the other options imply the phase.
    defaults: setting → its default in words, where a command has another one.
    """
    options_by_name, declarations = options_of_settings(Settings), declarations_of(Settings)
    options_by_name |= {
        setting_name: option_of_setting(declarations[setting_name], default=default_value)
        for setting_name, default_value in defaults.items()
    }
    options_by_name["phase"] = options_by_name["phase"]._replace(default=None)
    return options_by_name | {
        option_name: option_of_setting(setting) for option_name, setting in SETTINGS_BY_SHORTHAND.items()
    }


def add_settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the parameter `settings` of a command by the options of `Settings`."""
    return replace_parameter_by_options("settings", settings_options(), settings_with_shorthands)(command)
