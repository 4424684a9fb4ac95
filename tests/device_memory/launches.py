"""Launch files of Megatron-LM's functional tests, with some arguments changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmcalc.frameworks.launch.launch_types import Launch, LaunchSource
from llmcalc.frameworks.megatron.launch_file import read_megatron


def launched(arguments: Mapping[str, Any], name: str, **changes: Any) -> Launch:
    """A launch with these arguments on eight devices. changes: `hidden_size=512`; None leaves an argument out."""
    given = {**arguments, **{f"--{one.replace('_', '-')}": value for one, value in changes.items()}}
    return read_megatron(
        {"MODEL_ARGS": {one: value for one, value in given.items() if value is not None}}, LaunchSource(name, 8)
    )
