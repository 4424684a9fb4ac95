"""Explains the difference of two parameter counts by sizes in the spec, their multiples and their products."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement
from typing import TypeAlias

from ..components.base import Part
from ..model import ModelSpec
from ..symbolic.symbolic_model import letter_of_field

NamedSizes: TypeAlias = tuple[tuple[str, int], ...]
"""Sizes of a spec as (field, value) pairs, without duplicates."""

COUNTED_QUANTITIES = frozenset({"parameters", "buffers"})
"""Names of the quantities that are counted in elements."""

SMALLEST_SIZE, MAX_MULTIPLE, MAX_NAMES = 16, 4, 3
"""Limits of explanations: the smallest size, the largest multiple, and the largest number of alternatives.

Too many numbers are multiples or products of smaller sizes.
"""


def list_named_sizes(spec: ModelSpec) -> NamedSizes:
    """Returns every size in a spec by name."""
    return tuple(dict.fromkeys(_named_sizes_below(spec)))


def _named_sizes_below(spec_part: Part) -> Iterator[tuple[str, int]]:
    for field_name, field_info in type(spec_part).model_fields.items():
        field_size = getattr(spec_part, field_name)
        if isinstance(field_size, int) and field_size > 1 and letter_of_field(field_info) is not None:
            yield field_name, field_size
        field_values = field_size.values() if isinstance(field_size, dict) and field_name != "towers" else (field_size,)
        for field_value in field_values:
            if isinstance(field_value, Part):
                yield from _named_sizes_below(field_value)


def explain_difference(difference: int, model_sizes: NamedSizes) -> str:
    """Names what a difference equals, such as `= num_experts` or `= 2 × hidden_size`; empty if unclear."""
    absolute_difference = abs(difference)
    names_of_equal_sizes = [size_name for size_name, model_size in model_sizes if model_size == absolute_difference]
    large_sizes = [(size_name, model_size) for size_name, model_size in model_sizes if model_size >= SMALLEST_SIZE]
    size_multiples = [
        f"{size_factor} × {size_name}"
        for size_name, model_size in large_sizes
        for size_factor in range(2, MAX_MULTIPLE + 1)
        if size_factor * model_size == absolute_difference
    ]
    size_products = [
        f"{first_name} × {second_name}"
        for (first_name, first_size), (second_name, second_size) in combinations_with_replacement(large_sizes, 2)
        if first_size * second_size == absolute_difference
    ]
    explanations = list(dict.fromkeys(names_of_equal_sizes or size_multiples or size_products))
    if not explanations or len(explanations) > MAX_NAMES:
        return ""
    return f"= {' or '.join(explanations)}"
