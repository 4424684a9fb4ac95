"""The parts of a spec, each with the witness that its class states."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..evidence import UNTESTED, Evidence, Witness, witness_of
from .base import Part

OF_TOWERS = "towers"
"""The field of a spec with the encoders of images and audio, through which no text passes."""


def part_evidence(part: Part) -> Evidence:
    """The part by the name of its `type`, or of its class, with the witness that its class itself states."""
    kind, stated = getattr(part, "type", ""), witness_of(type(part))
    witness = stated if isinstance(stated, Witness) else stated.get(kind, UNTESTED)
    return Evidence(part.noun, kind or in_words(type(part).__name__), witness)


def in_words(name: str) -> str:
    """The name of a class as an option writes it: `TokenTypes` → `token_types`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def parts_below(value: Any) -> Iterator[Part]:
    """Yields every part inside a value, and the value itself if it is one; those of type `none` compute nothing."""
    if isinstance(value, Part):
        if getattr(value, "type", "") != "none":
            yield value
        for name in type(value).model_fields:
            if name != OF_TOWERS:
                yield from parts_below(getattr(value, name))
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from parts_below(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from parts_below(one)


def evidence_of_parts(spec: Part) -> list[Evidence]:
    """The parts of a model's text stacks, each kind of part once, in the order of the spec."""
    found = (part_evidence(part) for part in parts_below(spec) if part is not spec)
    return list(dict.fromkeys(found))
