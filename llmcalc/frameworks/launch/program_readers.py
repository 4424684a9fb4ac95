"""Builds the `Launch` of a training program from Trainer arguments, or from a framework's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..registry import framework
from .accelerate_command import trainer_arguments
from .record import Launch, LaunchFile, LaunchReader, LaunchSettings, Table
from .rollout import Rollout
from .trainer import read_trainer


def launch_as_trainer(reader: LaunchReader, file: LaunchFile, table: Table, target: str) -> Launch:
    """Returns the training run that Trainer arguments describe, under a program's name.

    table: the Trainer's arguments, with the program's defaults.
    target: the model's name.
    """
    reader.check_unknown()
    launched_run = read_trainer({**trainer_arguments(reader.source), **table}, reader.source)
    return replace(
        launched_run,
        settings=_with_adapters(launched_run.settings),
        kind=file.name,
        program=file.program,
        version=file.version,
        target=target,
        unknown={**reader.unknown, **launched_run.unknown},
        ignored=(*reader.ignored, *launched_run.ignored),
        notes=(*reader.notes, *launched_run.notes),
        filled_in={**launched_run.filled_in, **reader.filled_in},
        frozen=reader.frozen_on(launched_run.layout),
    )


def _with_adapters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without a format of master weights if only adapters are trained."""
    return {name: value for name, value in settings.items() if name != "master_weights" or "lora_rank" not in settings}


def launch_of_run(
    reader: LaunchReader,
    file: LaunchFile,
    framework_name: str,
    launch_settings: LaunchSettings,
    target: str,
    rollout: Rollout | None = None,
) -> Launch:
    """Returns the training run of a program.

    framework_name: the framework that runs it. target: the model's name. rollout: see `Launch`; default None.
    """
    return reader.launch(
        file.name,
        framework(framework_name).name,
        target=target,
        layout=launch_settings.layout,
        settings=_with_adapters(launch_settings.settings),
        own_settings=launch_settings.own_settings,
        program=file.program,
        version=file.version,
        rollout=rollout,
    )
