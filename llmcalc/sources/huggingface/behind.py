"""Maps a spec field back to config fields, by tracking the origin of every number in the config.

An error about `num_experts` can then name `n_routed_experts`, the name in the file, and no family has to list its
names. The config is read once more with numbers that carry the names of their fields, also through arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ...errors import InputError
from .config import IRRELEVANT
from .heads import head_of
from .registry import config_of, family_of, text_of


class Told(int):
    """An integer that carries the names of the config fields it was calculated from."""

    fields: frozenset[str]

    def __repr__(self) -> str:
        return int.__repr__(self)


class ToldReal(float):
    """A float that carries the names of its config fields; `math.floor` of it carries them too."""

    fields: frozenset[str]

    def __floor__(self) -> Any:
        return _from(float.__floor__(self), self.fields)


def _from(value: Any, fields: frozenset[str]) -> Any:
    """Returns a number that carries these field names; any other value is unchanged."""
    if type(value) not in (int, float):
        return value
    told: Any = Told(value) if isinstance(value, int) else ToldReal(value)
    told.fields = fields
    return told


def _calculated(cls: type, name: str) -> Callable[[Any, Any], Any]:
    def calculate(self: Any, other: Any) -> Any:
        value = getattr(cls, name)(self, other)
        if value is NotImplemented and isinstance(other, float):
            value = getattr(float, name)(float(self), other)
        return _from(value, self.fields | getattr(other, "fields", frozenset()))

    return calculate


for _told_type, _plain in ((Told, int), (ToldReal, float)):
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
        for _side in ("", "r"):
            setattr(_told_type, f"__{_side}{_name}__", _calculated(_plain, f"__{_side}{_name}__"))


def fields_behind(config: Mapping[str, Any], message: str) -> str:
    """Returns ` (…)` with the config fields behind the spec fields that a message names; empty if the names are the
    same.
    """
    try:
        where, given, kind = text_of(config)
        family = family_of(kind, where)
        if family.read is None:
            return ""
        told = {name: value if name in IRRELEVANT else _told(value, name) for name, value in given.items()}
        made = family.read(config_of(told, kind, family, head_of(config), where))
    except InputError:  # a .toml may have another value under that name
        return ""
    paths = re.findall(r"[\w.]+", message.partition("; expected")[0])
    named = {path.rpartition(".")[2] for path in paths}
    found = {field for number in _under(made, named) for field in number.fields}
    behind = [path for path in _paths(given) if path in found and path.rpartition(".")[2] not in named]
    return f" (in the config: {', '.join(where + path for path in behind)})" if behind else ""


def _told(value: Any, path: str) -> Any:
    """Returns a config value whose numbers carry their path."""
    if isinstance(value, dict):
        return {name: _told(inner, f"{path}.{name}") for name, inner in value.items()}
    if isinstance(value, list):
        return [_told(one, path) for one in value]
    return _from(value, frozenset({path}))


def _under(table: Any, names: set[str], there: bool = False) -> Iterator[Told | ToldReal]:
    """Yields the numbers under one of the names in a description."""
    if isinstance(table, dict):
        for name, value in table.items():
            yield from _under(value, names, name in names and not isinstance(value, dict))
    elif isinstance(table, list | tuple):
        for value in table:
            yield from _under(value, names, there)
    elif there and isinstance(table, Told | ToldReal):
        yield table


def _paths(given: Mapping[str, Any]) -> Iterator[str]:
    """Yields every field, nested tables included, in the order of the file."""
    for name, value in given.items():
        yield name
        if isinstance(value, dict):
            yield from (f"{name}.{inner}" for inner in _paths(value))
