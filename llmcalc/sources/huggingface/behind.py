"""Which fields of a `config.json` a field of its description was made of: those that change it where they are changed
and the config is read again.

So an error about `num_experts` can name `n_routed_experts`, which is what the file says, and no family has to list what
it makes of what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from time import process_time
from typing import Any, TypeAlias

from ...errors import InputError
from .config import IRRELEVANT, Config
from .heads import head_of
from .registry import family_of, text_of

Values: TypeAlias = dict[str, list[Any]]
"""Field → what it holds, in each of the tables that have it."""

LONGEST = 0.5
"""Seconds that the search may take; reading a model of 100 000 layers that are listed takes as long by itself."""


def fields_behind(config: Mapping[str, Any], message: str) -> str:
    """` (…)` with the fields of a config that those which a message names were made of;
    empty where they are called the same.
    """
    stop = process_time() + LONGEST
    try:
        where, given, _ = text_of(config)
        made = _made_of(config, given)
    except InputError:  # of a .toml that holds something else under that name
        return ""
    paths = re.findall(r"[\w.]+", message.partition("; expected")[0])
    named = {path.rpartition(".")[2] for path in paths}
    asked = {name for name in named if name in made and not any(isinstance(value, dict) for value in made[name])}
    if not asked:
        return ""
    places = ((path, value) for path, value in _places(given) if path[-1] not in named)
    behind = [
        ".".join(path)
        for path, value in places
        if process_time() < stop and _changes(config, given, path, value, made, asked)
    ]
    return f" (in the config: {', '.join(where + name for name in behind)})" if behind else ""


def _made_of(config: Mapping[str, Any], fields: Mapping[str, Any]) -> Values:
    """The values of the description that `fields`, in place of those of the config's text model, are read as."""
    where, _, kind = text_of(config)
    family = family_of(kind, where)
    if family.read is None:
        return {}
    return _values(family.read(Config(fields, family.defaults, kind, head_of(config), where, family.aliases)), {})


def _values(table: Any, found: Values) -> Values:
    if isinstance(table, dict):
        for name, value in table.items():
            found.setdefault(name, []).append(value)
            _values(value, found)
    return found


def _places(given: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every field that may matter, and what it holds; those of a table within, too."""
    for name, value in given.items():
        if name not in IRRELEVANT:
            yield from (
                (((name, inner), one) for inner, one in value.items())
                if isinstance(value, dict)
                else (((name,), value),)
            )


def _changes(
    config: Mapping[str, Any],
    given: Mapping[str, Any],
    path: tuple[str, ...],
    value: Any,
    made: Values,
    asked: set[str],
) -> bool:
    """Whether one of the fields asked for has other values where that of a config has another one that can be read.

    Fewer or more of the same are none, for so a field changes that says how many layers are of a kind; but a flag can
    change in no other way.
    """
    for other in _others(value):
        inner = given[path[0]]
        try:
            now = _made_of(config, {**given, path[0]: {**inner, path[1]: other} if len(path) > 1 else other})
        except InputError:
            continue
        pairs = [(made[name], now.get(name, [])) for name in asked]
        if any(old != new and (len(old) == len(new) or isinstance(old[0], bool)) for old, new in pairs):
            return True
    return False


def _others(value: Any) -> list[Any]:
    """Other values of the same kind, such as may be read in its place."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value + 1, 3 * value, value - 1, value // 2, value // 8, 100 * value, 1]
    if isinstance(value, float):
        return [value / 2, value * 2]
    if isinstance(value, list):
        return [[2 * one if type(one) is int else one for one in value], value[::-1]]
    return []
