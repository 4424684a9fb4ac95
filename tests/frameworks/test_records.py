"""The functions that records of frameworks name by their files exist, and take what the record's fields say."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from inspect import Parameter, signature
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from llmcalc.frameworks.framework import LazyFunction
from llmcalc.frameworks.registry import FRAMEWORK_NAMES, framework


class Names(dict[str, Any]):
    """The names that a module's annotations read; those that it imports for types alone stand for anything."""

    def __init__(self, module: str) -> None:
        self.module = sys.modules[module]

    def __missing__(self, name: str) -> Any:
        return getattr(self.module, name, getattr(builtins, name, Any))


def functions(record: Any) -> Iterator[tuple[LazyFunction, int]]:
    """The functions of a record and of the records in it, each with the number of arguments that its field states."""
    types = get_type_hints(type(record), localns=Names(type(record).__module__))
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, LazyFunction):
            kind = types[field.name]
            kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
            (called,) = (one for one in kinds if one is not NoneType)
            yield value, len(get_args(called)[0])
        elif is_dataclass(value):
            yield from functions(value)


@pytest.mark.parametrize("name", FRAMEWORK_NAMES)
def test_functions_by_name(name: str) -> None:
    found = list(functions(framework(name)))
    assert len(found) >= 3
    for function, count in found:
        parameters = list(signature(function.function).parameters.values())
        assert len([one for one in parameters if one.default is Parameter.empty]) == count, function.location
        assert function.function.__module__.startswith(f"llmcalc.frameworks.{name}."), function.location


def test_a_function_is_imported_when_it_is_called() -> None:
    with pytest.raises(ModuleNotFoundError):
        LazyFunction("llmcalc.frameworks.torch", "nothing:at_all")()
