"""Describes the layers of a stack as repeats of a pattern of layer types, and finds a layer's modules by path."""

from __future__ import annotations

from math import lcm

from ..flow.program import ModuleScope
from ..frozen import frozen
from ..model import ModelSpec
from .layer_pattern import RECORDED_REPEATS, find_layer_pattern, types_of_layers
from .meter import AllocationPlace

SHORT_RUN_REPEATS = 3
"""Number of layer repeats in a run from which longer runs are extrapolated: the first, an inner one, and the last."""


@frozen
class LayerStack:
    """The layers of a stack: a repeated pattern of layers, with irregular layers before and after the repeats.

    path: module path of the layers, without an index.
    layers_before: layers before the pattern begins.
    layer_period: layers of the pattern.
    repeat_count: whole repeats of the pattern.
    pattern_multiple: repeats of the pattern of layer kinds in one repeat of this pattern, default 1. It is more than 1
        where recompute differs between layers of one kind.
    remaining_repeats: repeats of the pattern of layer kinds after the last whole repeat, default 0. Where layers share
        tensors, one whole repeat is among them: the first gradient of a shared tensor may be a view, and autograd adds
        no second gradient to a view in place.
    layers_after: layers after the pattern, default 0.
    """

    path: str
    layers_before: int
    layer_period: int
    repeat_count: int
    pattern_multiple: int = 1
    remaining_repeats: int = 0
    layers_after: int = 0

    @property
    def nonrepeating_layer_count(self) -> int:
        """The number of layers that are not in a complete repeat of the pattern."""
        return (
            self.layers_before
            + self.remaining_repeats * (self.layer_period // self.pattern_multiple)
            + self.layers_after
        )

    @property
    def layer_count(self) -> int:
        """The number of layers of the stack."""
        return self.nonrepeating_layer_count + self.layer_period * self.repeat_count

    def contains(self, allocation_place: AllocationPlace) -> bool:
        """Whether a module is in a layer of this stack."""
        return allocation_place.path == self.path or allocation_place.path.startswith(f"{self.path}.")

    def is_in_second_repeat(self, allocation_place: AllocationPlace) -> bool:
        """Whether a module is in the second of the repeats of the layer pattern."""
        return (
            self.contains(allocation_place)
            and self.layers_before + self.layer_period
            <= allocation_place.layer_index
            < self.layers_before + 2 * self.layer_period
        )

    def place_in_later_repeat(self, allocation_place: AllocationPlace, repeat_count: int) -> AllocationPlace:
        """Returns the module and phase of an allocation for a later repeat of the layer pattern."""
        return AllocationPlace(
            allocation_place.phase,
            allocation_place.layer_index + repeat_count * self.layer_period,
            allocation_place.path,
        )

    def node_path(self, allocation_place: AllocationPlace) -> str:
        """Returns the path of a module in a layer, with the layer's index instead of the pattern repeat."""
        return f"{self.path}.{allocation_place.layer_index}{allocation_place.path[len(self.path) :]}"

    def end_index(self, pattern_repeats: int) -> int:
        """Returns the index after the stack's last layer in a run with `pattern_repeats` repeats."""
        return (
            self.layers_before
            + self.layer_period * pattern_repeats
            + self.remaining_repeats * (self.layer_period // self.pattern_multiple)
            + self.layers_after
        )

    def repeats_of_layer_types(self, pattern_repeats: int) -> int:
        """Converts repeats of this stack's pattern to repeats of its shortest pattern of layer types."""
        return pattern_repeats * self.pattern_multiple + self.remaining_repeats

    @property
    def is_extrapolated(self) -> bool:
        """Whether bytes are extrapolated from two runs that have fewer layers than the full run."""
        return (
            2 * (self.nonrepeating_layer_count + self.layer_period * SHORT_RUN_REPEATS) + self.layer_period
            < self.layer_count
        )


def layer_stacks(spec: ModelSpec, recompute_interval: int = 1) -> list[LayerStack]:
    """Returns a `LayerStack` for each stack of a model, in execution order.

    recompute_interval: recompute treats one layer in as many differently; 1 (default) if all layers run alike.
    """
    return program_stacks(spec.shared_program.root, recompute_interval)


def program_stacks(
    root_scope: ModuleScope, recompute_interval: int = 1, first_layer_index: int = 0
) -> list[LayerStack]:
    """Returns a `LayerStack` per stack of a program. first_layer_index: number of model layers before the program."""
    stacks = []
    for parent_path, layer_scopes in _stacks_of_scope(root_scope):
        layer_types = types_of_layers(layer_scopes)
        layers_before, layer_period, repeat_count = find_layer_pattern(layer_types)
        layers_after = len(layer_types) - layers_before - layer_period * repeat_count
        stack_path = ".".join((*parent_path, layer_scopes[0].name))
        patterns_per_repeat = lcm(layer_period, recompute_interval) // layer_period
        repeat_count, remaining_repeats = divmod(repeat_count, patterns_per_repeat)
        if repeat_count > RECORDED_REPEATS and any(map(_shares_tensors, layer_scopes)):
            repeat_count, remaining_repeats = repeat_count - 1, remaining_repeats + patterns_per_repeat
        stacks.append(
            LayerStack(
                stack_path,
                first_layer_index + layers_before,
                layer_period * patterns_per_repeat,
                repeat_count,
                patterns_per_repeat,
                remaining_repeats,
                layers_after,
            )
        )
    return stacks


def long_stacks(root_scope: ModuleScope, recompute_interval: int, first_layer_index: int) -> list[LayerStack]:
    """Returns a program's only layer stack if it has more repeats than are recorded; otherwise nothing.

    recompute_interval, first_layer_index: as in `program_stacks`.
    """
    stacks = program_stacks(root_scope, recompute_interval, first_layer_index)
    return stacks if len(stacks) == 1 and stacks[0].repeat_count > RECORDED_REPEATS else []


def _shares_tensors(layer_scope: ModuleScope) -> bool:
    """Whether layers of a type share a tensor, such as an encoder's output, a position bias or a weight."""
    assert layer_scope.first_input is not None
    inner_storage_ids = {id(layer_scope.first_input.storage)}
    for operation in layer_scope.steps():
        if any(id(input_value.storage) not in inner_storage_ids for input_value in operation.input_values):
            return True
        inner_storage_ids |= {id(output_value.storage) for output_value in operation.output_values}
    return layer_scope.node_fields.get("role") == "shared"


def _stacks_of_scope(
    module_scope: ModuleScope, parent_path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], list[ModuleScope]]]:
    """Returns each stack that runs, as the path of its parent module and the module scopes of its layers."""
    layer_scopes = [
        scope_item
        for scope_item in module_scope.items
        if isinstance(scope_item, ModuleScope)
        and scope_item.first_input is not None
        and not scope_item.node_fields.get("optional")
    ]
    stacks = [(parent_path, layer_scopes)] if layer_scopes else []
    for scope_item in module_scope.items:
        if (
            isinstance(scope_item, ModuleScope)
            and scope_item.first_input is None
            and not scope_item.node_fields.get("optional")
        ):
            stacks += _stacks_of_scope(scope_item, (*parent_path, scope_item.name))
    return stacks
