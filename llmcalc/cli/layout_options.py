"""The options of a layout over devices: all of them, or those of the counts of one rank."""

from __future__ import annotations

from collections.abc import Callable

from ..parallel.counted_rank import RankRequest, rank_settings
from ..parallel.layout_request import LayoutRequest
from ..workload.setting import declared
from .setting_options import OptionOfCommand, option_of, options_of, takes


def takes_layout(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's parameter `layout_request` by the options of a layout."""
    return takes(
        "layout_request",
        {**options_of(LayoutRequest), "framework": _framework()},
        lambda chosen: LayoutRequest(**chosen),
    )(command)


def _framework() -> OptionOfCommand:
    """The option `--framework`, whose words are the names of the records."""
    from ..frameworks.registry import NAMES, WITHOUT_A_NAME, framework

    records = [framework(name) for name in NAMES]
    implied = (f"{record.name} {record.implied_by[0]}" for record in records if record.implied_by is not None)
    names = f"{', '.join(NAMES[:-1])} or {NAMES[-1]}"
    found = declared(LayoutRequest)["framework"]
    text = f"{names}. {found.setting.help} By default {', '.join((*implied, f'else {WITHOUT_A_NAME}'))}."
    return option_of(found, help=text, metavar="NAME", complete=lambda: NAMES)


def takes_rank(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's parameter `rank_request` by the options of one rank."""
    options = {name: option_of(found) for name, found in rank_settings().items()}
    return takes("rank_request", options, lambda chosen: RankRequest(**chosen))(command)
