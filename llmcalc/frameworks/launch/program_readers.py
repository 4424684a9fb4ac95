"""Builds the `Launch` of a training program from Trainer arguments, or from a framework's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..registry import framework
from .accelerate_command import trainer_arguments
from .record import Launch, LaunchFile, Reading, RunUnder, Table
from .rollout import Rollout
from .trainer import read_trainer


def launch_as_trainer(reading: Reading, file: LaunchFile, table: Table, target: str) -> Launch:
    """Returns the training run that Trainer arguments describe, under a program's name.

    table: the Trainer's arguments, with the program's defaults.
    target: the model's name.
    """
    reading.check_unknown()
    launch = read_trainer({**trainer_arguments(reading.source), **table}, reading.source)
    return replace(
        launch,
        settings=_with_adapters(launch.settings),
        kind=file.name,
        program=file.program,
        version=file.version,
        target=target,
        unknown={**reading.unknown, **launch.unknown},
        ignored=(*reading.ignored, *launch.ignored),
        notes=(*reading.notes, *launch.notes),
        filled_in={**launch.filled_in, **reading.filled_in},
        frozen=reading.frozen_on(launch.layout),
    )


def _with_adapters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings without a format of master weights if the run trains adapters, which have their own format."""
    return {name: value for name, value in settings.items() if name != "master_weights" or "lora_rank" not in settings}


def launch_of_run(
    reading: Reading, file: LaunchFile, framework_name: str, run: RunUnder, target: str, rollout: Rollout | None = None
) -> Launch:
    """Returns the training run of a program.

    framework_name: the framework that runs it. target: the model's name. rollout: see `Launch`; default None.
    """
    return reading.launch(
        file.name,
        framework(framework_name).name,
        target=target,
        layout=run.layout,
        settings=_with_adapters(run.settings),
        own_settings=run.own_settings,
        program=file.program,
        version=file.version,
        rollout=rollout,
    )
