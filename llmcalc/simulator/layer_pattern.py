"""The repeating pattern of layer types in a stack, so that a simulation of few repeats represents all layers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from operator import is_
from typing import NamedTuple, TypeVar

from ..flow.program import ModuleScope


def types_of_layers(layer_scopes: list[ModuleScope]) -> list[ModuleScope]:
    """Returns the type of each layer, from the first to the last."""
    if len(layer_scopes) == 1:
        (only_scope,) = layer_scopes
        layer_indices = only_scope.node_fields.get("indices")
        return [only_scope] * (only_scope.node_fields["repeat"] if layer_indices is None else len(layer_indices))
    kinds_by_index = {
        layer_number: layer_scope for layer_scope in layer_scopes for layer_number in layer_scope.node_fields["indices"]
    }
    return [kinds_by_index[layer_index] for layer_index in sorted(kinds_by_index)]


LayerType = TypeVar("LayerType")
"""A type of layers, as its scope or its name. Equal types are the same object."""


class LayerPattern(NamedTuple):
    """Where and how often a sequence of layer types repeats in a stack.

    first_layer: index of the first layer of the pattern.
    layer_period: layers of the pattern.
    repeat_count: number of whole repeats.
    """

    first_layer: int
    layer_period: int
    repeat_count: int


LONGEST_PATTERN = 100
"""Largest number of layers in a pattern."""

RECORDED_REPEATS = 4
"""Number of pattern repeats in a recorded run: the first, two inner ones, and the last."""


def find_layer_pattern(layer_types: Sequence[object]) -> LayerPattern:
    """Returns the repeating pattern of layers with which a run of `RECORDED_REPEATS` repeats is shortest.

    If the layers do not repeat, the pattern is the whole stack.
    """
    layer_count = len(layer_types)
    if layer_count > RECORDED_REPEATS and all(map(is_, layer_types, repeat(layer_types[0]))):
        return LayerPattern(0, 1, layer_count)
    best_pattern, layers_to_run = LayerPattern(0, layer_count, 1), layer_count
    for layer_period in range(1, min(layer_count // RECORDED_REPEATS, LONGEST_PATTERN) + 1):
        if RECORDED_REPEATS * layer_period >= layers_to_run:
            break
        first_layer = 0
        for pattern_end in range(layer_period, layer_count + 1):
            if pattern_end < layer_count and layer_types[pattern_end] is layer_types[pattern_end - layer_period]:
                continue
            repeat_count = (pattern_end - first_layer) // layer_period
            if (
                repeat_count > RECORDED_REPEATS
                and layer_count - (repeat_count - RECORDED_REPEATS) * layer_period < layers_to_run
            ):
                best_pattern = LayerPattern(first_layer, layer_period, repeat_count)
                layers_to_run = layer_count - (repeat_count - RECORDED_REPEATS) * layer_period
            first_layer = pattern_end - layer_period + 1
    return best_pattern


def shortened_layers(layer_types: list[LayerType], repeats_to_keep: int | None) -> list[LayerType]:
    """Returns the layers with fewer repeats of the pattern, or all layers if `repeats_to_keep` is None."""
    if repeats_to_keep is None:
        return layer_types
    first_layer, layer_period, repeat_count = find_layer_pattern(layer_types)
    return [
        *layer_types[:first_layer],
        *layer_types[first_layer : first_layer + layer_period] * repeats_to_keep,
        *layer_types[first_layer + layer_period * repeat_count :],
    ]
