"""Commands with other parameters than those of their functions, which typer reads from a signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def with_signature(
    run: Callable[..., None], command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """`run` under the name and the help of a command, with these parameters."""
    shown: Any = run
    found = list(parameters)
    shown.__doc__, shown.__name__ = command.__doc__, command.__name__
    shown.__signature__ = inspect.signature(command).replace(parameters=found)
    shown.__annotations__ = {parameter.name: parameter.annotation for parameter in found}
    return run
