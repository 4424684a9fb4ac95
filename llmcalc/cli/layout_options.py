"""The parallelism options of commands, for a whole layout or for one counted rank."""

from __future__ import annotations

from collections.abc import Callable

from ..parallel.counted_rank import RankRequest, rank_settings
from ..parallel.layout_request import LayoutRequest
from ..workload.setting import declarations_of
from .setting_options import CommandOption, option_of_setting, options_of_settings, replace_parameter_by_options


def layout_options() -> dict[str, CommandOption]:
    """Returns the command-line options for a parallel layout (tensor, pipeline, data, … parallelism)."""
    return {**options_of_settings(LayoutRequest), "framework": _framework_option()}


def add_layout_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's parameter `layout_request` by the options of a layout."""
    return replace_parameter_by_options("layout_request", layout_options(), lambda chosen: LayoutRequest(**chosen))(
        command
    )


def _framework_option() -> CommandOption:
    """Returns the option `--framework`, with the names of all frameworks as values."""
    from ..frameworks.registry import DEFAULT_FRAMEWORK, FRAMEWORK_NAMES, framework

    framework_records = [framework(framework_name) for framework_name in FRAMEWORK_NAMES]
    implied_frameworks = (
        f"{framework_record.name} {framework_record.implying_options[0]}"
        for framework_record in framework_records
        if framework_record.implying_options is not None
    )
    name_list = f"{', '.join(FRAMEWORK_NAMES[:-1])} or {FRAMEWORK_NAMES[-1]}"
    framework_setting = declarations_of(LayoutRequest)["framework"]
    default_list = ", ".join((*implied_frameworks, f"else {DEFAULT_FRAMEWORK}"))
    help_text = f"{name_list}. {framework_setting.setting.help} By default {default_list}."
    return option_of_setting(framework_setting, help=help_text, metavar="NAME", completions=lambda: FRAMEWORK_NAMES)


def add_rank_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's parameter `rank_request` by the options of one counted rank."""
    options_by_name = {
        option_name: option_of_setting(rank_setting) for option_name, rank_setting in rank_settings().items()
    }
    return replace_parameter_by_options("rank_request", options_by_name, lambda chosen: RankRequest(**chosen))(command)
