"""Answers the commands `serve` and `plot serve` from the command-line options that describe servers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..questions.time_and_cost_options import ServeOptions
from .target_options import TargetOptions

if TYPE_CHECKING:
    from ..reports.answer import ReportedAnswer


def serve_answer(target: str, hardware: str, options: ServeOptions, target_options: TargetOptions) -> ReportedAnswer:
    """Returns the answer about servers of a model under load. target: the TARGET. hardware: the accelerator's name."""
    from ..questions.serving import ask_serve
    from ..sources.hardware import accelerators_and_devices
    from ..sources.preset import target_in_errors

    preset = target_options.load(target)
    with target_in_errors(preset):
        (accelerator,), devices = accelerators_and_devices([hardware], options.devices)
        return ask_serve(preset, accelerator, replace(options, devices=devices), target_options.load)
