"""The parts of a spec, each with the witness that its class states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..evidence import UNTESTED, Evidence, Witness, witness_of
from ..optional import OPTIONAL_PARTS, TOWERS
from .base import Part


def part_evidence(part: Part) -> Evidence:
    """The part by the name of its `type`, or of its class, with the witness that its class itself states."""
    kind, stated = getattr(part, "type", ""), witness_of(type(part))
    witness = stated if isinstance(stated, Witness) else stated.get(kind, UNTESTED)
    return Evidence(part.noun, kind or in_words(type(part).__name__), witness)


def in_words(name: str) -> str:
    """The name of a class as an option writes it: `TokenTypes` → `token_types`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def parts_below(value: Any, include: frozenset[str] = frozenset()) -> Iterator[Part]:
    """Yields every part inside a value, and the value itself if it is one; those of type `none` compute nothing.

    include: the names of optional parts (`llmcalc.optional`) that count too; none by default.
    """
    if isinstance(value, Part):
        if getattr(value, "type", "") != "none":
            yield value
        for name in type(value).model_fields:
            if name not in OPTIONAL_PARTS or name in include:
                yield from parts_below(getattr(value, name), include)
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from parts_below(one, include)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from parts_below(one, include)


def evidence_of_parts(spec: Part, include: frozenset[str] = frozenset()) -> list[Evidence]:
    """The parts of a model's text stacks, each kind of part once, in the order of the spec.

    include: the names of optional parts that run too. Encoders of images and audio never do: no text passes them, and
    a run holds their weights alone.
    """
    found = (part_evidence(part) for part in parts_below(spec, include - {TOWERS.name}) if part is not spec)
    return list(dict.fromkeys(found))
