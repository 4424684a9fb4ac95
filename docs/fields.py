"""An extension of griffe: lists the fields in docstrings of the form `name: what it is`, one to a line."""

from __future__ import annotations

import re
from typing import Any

import griffe

FIELD = re.compile(r"^(\w+(?:, \w+)*): ")


def listed(text: str, known: frozenset[str] | None = None) -> str:
    """A docstring in which each field is an item of a list. known: the only fields to list; all by default."""
    lines: list[str] = []
    inside = skipped = False
    for number, line in enumerate(text.splitlines()):
        if number and (field_match := FIELD.match(line)):
            skipped = known is not None and known.isdisjoint(field_match[1].split(", "))
            if not skipped:
                lines += ([] if inside or not lines[-1] else [""]) + [
                    f"- `{field_match[1]}`: {line[field_match.end() :]}"
                ]
                inside = True
        elif line.startswith(" ") and skipped:
            continue
        elif inside and line and not line.startswith(" "):
            lines += ["", line]
            inside = skipped = False
        else:
            lines.append(line)
            skipped = False
    return "\n".join(lines)


class Fields(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = listed(obj.docstring.value)
