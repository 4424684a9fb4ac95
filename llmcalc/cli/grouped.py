"""Options of which several commands take many: a class has them as attributes, and a command gets them as one value."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def takes(
    name: str, options: type, made: Callable[[dict[str, Any]], Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the attributes of a class as options, in the place of one of its parameters.

    name: the parameter, which gets what `made` returns of the options' values.
    """

    def changed(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        hints = get_type_hints(command, include_extras=True)
        kinds = get_type_hints(options, include_extras=True)
        parameters: list[inspect.Parameter] = []
        for one, parameter in signature.parameters.items():
            if one != name:
                parameters.append(parameter.replace(annotation=hints[one]))
                continue
            parameters += [
                inspect.Parameter(each, parameter.kind, default=getattr(options, each), annotation=kind)
                for each, kind in kinds.items()
            ]

        def run(**given: Any) -> None:
            command(**{name: made({each: given.pop(each) for each in kinds})}, **given)

        run.__doc__ = command.__doc__
        run.__name__ = command.__name__
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return changed
