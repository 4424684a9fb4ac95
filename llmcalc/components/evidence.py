"""Lists the components of a model with the evidence for memory that each component's class declares."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..evidence import UNTESTED, Evidence, Witness, witness_of
from ..optional import OPTIONAL_PARTS, TOWERS
from .base import Part


def evidence_of_component(component: Part) -> Evidence:
    """Returns the evidence that a component's class declares for its memory, under the component's `type`."""
    part_type, class_witness = getattr(component, "type", ""), witness_of(type(component))
    witness = class_witness if isinstance(class_witness, Witness) else class_witness.get(part_type, UNTESTED)
    return Evidence(component.noun, part_type or snake_case_name(type(component).__name__), witness)


def snake_case_name(class_name: str) -> str:
    """Converts a class name to snake case: `TokenTypes` → `token_types`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()


def nested_components(root_value: Any, included_parts: frozenset[str] = frozenset()) -> Iterator[Part]:
    """Yields every component inside a value, and the value itself, but no component of type `none`.

    included_parts: the names of optional parts (`llmcalc.optional`) that count too; none by default.
    """
    if isinstance(root_value, Part):
        if getattr(root_value, "type", "") != "none":
            yield root_value
        for field_name in type(root_value).model_fields:
            if field_name not in OPTIONAL_PARTS or field_name in included_parts:
                yield from nested_components(getattr(root_value, field_name), included_parts)
    elif isinstance(root_value, Mapping):
        for inner_value in root_value.values():
            yield from nested_components(inner_value, included_parts)
    elif isinstance(root_value, tuple | list):
        for inner_value in root_value:
            yield from nested_components(inner_value, included_parts)


def evidence_of_parts(spec: Part, included_parts: frozenset[str] = frozenset()) -> list[Evidence]:
    """Returns the memory evidence of a text model's components, once per component type, in description order.

    included_parts: the names of optional parts that run too. Encoders of images and audio never do: no text passes
        them, and a run holds their weights alone.
    """
    components = nested_components(spec, included_parts - {TOWERS.name})
    evidence = (evidence_of_component(component) for component in components if component is not spec)
    return list(dict.fromkeys(evidence))
