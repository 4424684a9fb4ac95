"""Liveness of a program's tensors: each tensor's last reader, and modules that never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..algebra import Number
from ..flow.program import NEVER_RUN, Alternatives, Item, Scope, Step
from ..flow.tree import OpUse
from ..flow.value import Value


def unused_modules(module_scope: Scope, repeats: Number = 1) -> Iterator[tuple[str, OpUse, Number]]:
    """Yields name, operation and number of copies of the modules that no pass runs, without optional parts.

    repeats: the number of copies of the scope.
    """
    for item in module_scope.items:
        if not isinstance(item, Scope) or item.about.get("optional") or item.about.get("role") == "shared":
            continue
        copies = repeats * item.about.get("repeat", 1)
        if item.about.get("role") not in NEVER_RUN:
            yield from unused_modules(item, copies)
            continue
        for node_position in item.node().walk():
            if node_position.use is not None:
                yield node_position.node.name, node_position.use, repeats * node_position.times


def is_a_layer(module_scope: Scope) -> bool:
    """Whether a repeated module is a layer of a stack, not a multi-token-prediction module."""
    return module_scope.first_input is not None and not module_scope.about.get("optional")


def modules_below(module_scope: Scope, parent_path: str = "") -> Iterator[tuple[str, Scope]]:
    """Yields path and module of every submodule that is called with a tensor."""
    for item in module_scope.items:
        if isinstance(item, Alternatives):
            for branch in item.branches.values():
                yield from modules_below(branch, parent_path)
        elif isinstance(item, Scope) and item.about.get("role") not in NEVER_RUN:
            path = f"{parent_path}{item.name}"
            if (
                item.argument is not None
                and item.stacked_axis is None
                and item.first_layer_output is None
                and item.list_index is None
            ):
                yield path, item
            yield from modules_below(item, f"{path}.")


def base_among(value: Value | None, candidates: set[int]) -> int | None:
    """Returns the id of the candidate that is this value or its nearest base; None without a match."""
    while value is not None and id(value) not in candidates:
        value = value.of
    return None if value is None else id(value)


def is_view_of(value: Value | None, base: Value | None) -> bool:
    """Whether a value is `base` or a view of `base`."""
    while value is not None and value is not base:
        value = value.of
    return value is not None


def last_readers(
    root: Scope, branch: Callable[[Alternatives], Scope], is_skipped: Callable[[Scope], bool]
) -> tuple[dict[int, int], set[int]]:
    """Returns value → last reader of the value's storage, and the values that several layers read.

    branch: which of several forms runs. is_skipped: whether a module does not.
    """
    last_reader: dict[int, int] = {}
    last_layer: dict[int, Scope] = {}
    layers_by_value: dict[int, Scope] = {}
    shared_values: set[int] = set()

    def visit(items: Sequence[Item], layer: Scope) -> None:
        for item in items:
            if isinstance(item, Alternatives):
                executed_branch, first_branch = branch(item), next(iter(item.branches.values()))
                visit(executed_branch.items, layer)
                if executed_branch is not first_branch and executed_branch.output is not None:
                    # the first branch stands for it
                    shared_values.add(id(executed_branch.output.storage))
            elif isinstance(item, Step):
                for value in item.ins:
                    key = id(value.storage)
                    last_reader[key], last_layer[key] = id(item), layer
                    if (
                        layer is not root
                        and layers_by_value.get(key, layer) is not layer
                        and not is_view_of(value, layer.first_input)
                    ):
                        shared_values.add(key)
                for value in item.outs:
                    layers_by_value[id(value)] = layer
            elif not is_skipped(item):
                visit(item.items, item if item.first_input is not None else layer)
                if item.stacked_axis is not None:  # each of its runs reads what comes from outside
                    operations = list(item.steps())
                    inner_values = {id(output_value) for operation in operations for output_value in operation.outs}
                    storages_read = {
                        id(input_value.storage) for operation in operations for input_value in operation.ins
                    }
                    last_reader.update(dict.fromkeys(storages_read - inner_values, id(item)))

    visit(root.items, root)
    for module_scope in root.scopes():
        if (
            module_scope.first_input is not None
            and module_scope.output is not None
            and last_layer.get(id(module_scope.output.storage)) is module_scope
        ):
            shared_values.add(id(module_scope.output.storage))  # the loop over the layers reads it after all steps
    return {key: step for key, step in last_reader.items() if key not in shared_values}, shared_values
