"""The settings of a run on one device as options, and shorter names for some of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import typer

from ..device_memory.settings import Settings
from ..errors import InputError
from ..workload.setting import Declared, Setting
from .setting_options import OptionOfCommand, option_of, options_of, takes

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

USERS = Declared(
    "users",
    int,
    Setting(
        "Inference: users at once, as --batch. Each has a sequence of --seq tokens.",
        "What runs",
        spellings=("--concurrency",),
        common=True,
    ),
)

CHECKPOINTING = Declared("gradient_checkpointing", bool, Setting("The same as --recompute full.", "Training"))

SHORTHANDS: dict[str, OptionOfCommand] = {found.name: option_of(found) for found in (USERS, CHECKPOINTING)}
"""Options that stand for a setting."""


def settings_from(chosen: dict[str, Any]) -> Settings:
    """The settings that options say. Raises `InputError` where two options say one setting."""
    users, checkpointing = (chosen.pop(name) for name in SHORTHANDS)
    settings = Settings(**chosen)
    if users is not None:
        if settings.phase == "training":
            raise InputError("--users: training has no users; expected --batch")
        if settings.batch is not None:
            raise InputError("--users: it is another name of --batch; expected one of the two")
        settings = settings.with_(batch=users)
    if checkpointing:
        if settings.recompute not in (None, "full"):
            raise InputError(
                f"--gradient-checkpointing: it is --recompute full, and --recompute is {settings.recompute}; expected "
                "one of the two"
            )
        settings = settings.with_(recompute="full")
    return settings


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Settings` in the place of its parameter `settings`, which gets them as one."""
    return takes("settings", {**options_of(Settings), **SHORTHANDS}, settings_from)(command)
