"""Reads the text of a launch file into plain tables: JSON, YAML and TOML, with limits against files made to harm.

YAML has aliases, with which a short text stands for a huge one, and a list can hold itself; both are refused before
anything is built. PyYAML's safe loader builds only numbers, texts, lists and tables.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from typing import Any

from ...errors import InputError, MissingExtra, one_line
from ..files import DEEPEST, require_shallow

LARGEST = 400_000
"""The largest launch file in bytes; real ones are under 20 000."""

MOST_ALIASES = 20
"""The most aliases in a YAML file: with so few the text they stand for stays small."""


def parse_json(text: str, where: str) -> Any:
    """Parses JSON. Raises `InputError` with line and column."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: not valid JSON: {error.msg} at line {error.lineno}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{where}: not valid JSON: a number is too long, or lists are nested too deeply") from None
    require_shallow(data, where)
    return data


def parse_toml(text: str, where: str) -> dict[str, Any]:
    """Parses TOML. Raises `InputError` with line and column."""
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid TOML: {str(error).partition(';')[0]}") from None
    require_shallow(data, where)
    return data


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML. Raises `InputError` with line and column, and `MissingExtra` without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise MissingExtra(f"{where}: YAML", "PyYAML", "launch") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml, text, where)
        _check_keys(yaml, yaml.compose(text, Loader=loader), where)
        data = yaml.load(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise InputError(f"{where}: not valid YAML: {one_line(error.problem or str(error))}{at}") from None
    except (yaml.YAMLError, ValueError, RecursionError, OverflowError, TypeError, AttributeError) as error:
        raise InputError(f"{where}: not valid YAML: {one_line(str(error))[:200]}") from None
    plain = _plain(data, where)
    require_shallow(plain, where)
    return plain


def _check_events(yaml: Any, text: str, where: str) -> None:
    """Raises `InputError` for nesting, aliases and repeated keys before anything is built."""
    open_anchors: list[str | None] = []
    aliases = 0
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.events.CollectionStartEvent):
            open_anchors.append(event.anchor)
            if len(open_anchors) > DEEPEST:
                raise InputError(f"{where}: nested too deeply; expected at most {DEEPEST} tables and lists")
        elif isinstance(event, yaml.events.CollectionEndEvent):
            open_anchors.pop()
        elif isinstance(event, yaml.events.AliasEvent):
            aliases += 1
            line = event.start_mark.line + 1
            if event.anchor in open_anchors:
                raise InputError(f"{where}: line {line}: *{event.anchor} stands inside what it names")
            if aliases > MOST_ALIASES:
                raise InputError(f"{where}: line {line}: too many aliases; expected at most {MOST_ALIASES}")


def _check_keys(yaml: Any, root: Any, where: str) -> None:
    """Raises `InputError` for a key that one table gives twice with two values; YAML would keep the last."""
    left, seen = [root], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen or node is None:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            left += node.value
        elif isinstance(node, yaml.MappingNode):
            given: dict[str, Any] = {}
            for key, value in node.value:
                left += [key, value]
                if not isinstance(key, yaml.ScalarNode) or key.value == "<<":
                    continue
                before = given.setdefault(key.value, value)
                if before is not value and not _alike(yaml, before, value):
                    line = key.start_mark.line + 1
                    raise InputError(f"{where}: line {line}: {one_line(key.value)[:60]} is given twice; expected once")


def _alike(yaml: Any, one: Any, other: Any) -> bool:
    both = isinstance(one, yaml.ScalarNode) and isinstance(other, yaml.ScalarNode)
    return both and bool(one.value == other.value)


def _plain(data: Any, where: str, deep: int = 0) -> Any:
    """The same data of tables with texts as keys, lists, texts, numbers, flags and nothing."""
    if deep > DEEPEST:
        raise InputError(f"{where}: nested too deeply; expected at most {DEEPEST} tables and lists")
    if isinstance(data, dict):
        return {_key(key, where): _plain(value, where, deep + 1) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value, where, deep + 1) for value in data]
    if data is None or isinstance(data, str | int | float):
        return data
    if isinstance(data, datetime.date | datetime.datetime):
        return data.isoformat()
    raise InputError(f"{where}: holds a {type(data).__name__}; expected texts, numbers, lists and tables")


def _key(key: Any, where: str) -> str:
    if isinstance(key, str | int | float) or key is None:
        try:
            return str(key)
        except ValueError:
            raise InputError(f"{where}: a key is a number of thousands of digits") from None
    raise InputError(f"{where}: a key is a {type(key).__name__}; expected text")
