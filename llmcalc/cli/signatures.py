"""Sets the signature of a command's function, from which typer reads the options."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any


def with_command_signature(
    run_command: Callable[..., None], command: Callable[..., None], parameters: Iterable[inspect.Parameter]
) -> Callable[..., None]:
    """Gives a function the name, help text and signature of a command, from which typer builds the options."""
    wrapped_function: Any = run_command
    parameter_list = list(parameters)
    wrapped_function.__doc__, wrapped_function.__name__ = command.__doc__, command.__name__
    wrapped_function.__signature__ = inspect.signature(command).replace(parameters=parameter_list)
    wrapped_function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameter_list}
    return run_command
