"""Options for the images and the audio of each sequence."""

from __future__ import annotations

from collections.abc import Callable

from ..workload.inputs import Inputs
from .setting_options import options_of, replace_parameter


def takes_inputs(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces the parameter `inputs` of a command by the options of `Inputs`."""
    return replace_parameter("inputs", options_of(Inputs), lambda values: Inputs(**values))(command)
