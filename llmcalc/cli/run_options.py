"""The settings of a run on one device as options, and shorter names for some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeAlias

import typer

from ..device_memory.settings import SHORTHANDS, Settings, settings_with_shorthands
from .setting_options import option_of, options_of, takes

CublasWorkspace: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--cublas-workspace",
        metavar=":KIB:COUNT",
        help="CUBLAS_WORKSPACE_CONFIG of the run, such as :4096:8. [default: as torch chooses for the accelerator]",
        show_default=False,
        rich_help_panel="Hardware",
        hidden=True,
    ),
]


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Settings` in the place of its parameter `settings`, which gets them as one."""
    shorthands = {name: option_of(found) for name, found in SHORTHANDS.items()}
    return takes("settings", {**options_of(Settings), **shorthands}, settings_with_shorthands)(command)
