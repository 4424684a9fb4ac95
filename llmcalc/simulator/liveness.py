"""Liveness of a program's tensors: the last operation that reads each tensor, and the modules that never run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..algebra import Number
from ..flow.program import UNEXECUTED_ROLES, AlternativeBranches, ModuleScope, ProgramItem, Step
from ..flow.tree import CountedOp
from ..flow.value import Value


def unused_modules(module_scope: ModuleScope, repeat_count: Number = 1) -> Iterator[tuple[str, CountedOp, Number]]:
    """Yields name, operation and number of copies of each module that no pass runs; optional parts are left out.

    Modules of other layers that are stored in a shared one are left out: those layers run them.

    repeat_count: the number of copies of the scope.
    """
    for scope_item in module_scope.items:
        if (
            not isinstance(scope_item, ModuleScope)
            or scope_item.node_fields.get("optional")
            or scope_item.node_fields.get("role") == "shared"
            or (scope_item.has_parameters_per_layer and scope_item.node_fields.get("role") == "kept")
        ):
            continue
        copy_count = repeat_count * scope_item.node_fields.get("repeat", 1)
        if scope_item.node_fields.get("role") not in UNEXECUTED_ROLES:
            yield from unused_modules(scope_item, copy_count)
            continue
        for positioned_node in scope_item.node().walk():
            if positioned_node.counted_op is not None:
                yield positioned_node.node.name, positioned_node.counted_op, repeat_count * positioned_node.copies


def is_stack_layer(module_scope: ModuleScope) -> bool:
    """Whether a repeated module is a layer of a stack (and not a multi-token-prediction module)."""
    return module_scope.first_input is not None and not module_scope.node_fields.get("optional")


def module_scopes_below(module_scope: ModuleScope, parent_path: str = "") -> Iterator[tuple[str, ModuleScope]]:
    """Yields path and module of every submodule that is called with a tensor."""
    for scope_item in module_scope.items:
        if isinstance(scope_item, AlternativeBranches):
            for branch in scope_item.branches.values():
                yield from module_scopes_below(branch, parent_path)
        elif isinstance(scope_item, ModuleScope) and scope_item.node_fields.get("role") not in UNEXECUTED_ROLES:
            module_path = f"{parent_path}{scope_item.name}"
            if (
                scope_item.module_argument is not None
                and scope_item.stacked_axis is None
                and scope_item.first_layer_output is None
                and scope_item.list_index is None
            ):
                yield module_path, scope_item
            yield from module_scopes_below(scope_item, f"{module_path}.")


def nearest_base_id(recorded_value: Value | None, candidate_ids: set[int]) -> int | None:
    """Returns the id of this value or of the nearest value of which it is a view, among `candidate_ids`; or None."""
    while recorded_value is not None and id(recorded_value) not in candidate_ids:
        recorded_value = recorded_value.view_source
    return None if recorded_value is None else id(recorded_value)


def is_view_of(recorded_value: Value | None, base_value: Value | None) -> bool:
    """Whether a value is `base_value` or a view of `base_value`."""
    while recorded_value is not None and recorded_value is not base_value:
        recorded_value = recorded_value.view_source
    return recorded_value is not None


def last_readers(
    root_scope: ModuleScope,
    choose_branch_of: Callable[[AlternativeBranches], ModuleScope],
    is_module_skipped: Callable[[ModuleScope], bool],
) -> tuple[dict[int, int], set[int]]:
    """Returns, for each storage, the last operation that reads it, and the values that several layers read.

    choose_branch_of: returns the executed alternative. is_module_skipped: returns whether a module does not run.
    """
    last_reader_ids: dict[int, int] = {}
    last_reading_layers: dict[int, ModuleScope] = {}
    layer_of_value: dict[int, ModuleScope] = {}
    shared_value_ids: set[int] = set()

    def visit(scope_items: Sequence[ProgramItem], layer: ModuleScope) -> None:
        for scope_item in scope_items:
            if isinstance(scope_item, AlternativeBranches):
                executed_branch, first_branch = choose_branch_of(scope_item), next(iter(scope_item.branches.values()))
                visit(executed_branch.items, layer)
                if executed_branch is not first_branch and executed_branch.output is not None:
                    # the first branch stands for it
                    shared_value_ids.add(id(executed_branch.output.storage))
            elif isinstance(scope_item, Step):
                for recorded_value in scope_item.input_values:
                    storage_id = id(recorded_value.storage)
                    last_reader_ids[storage_id], last_reading_layers[storage_id] = id(scope_item), layer
                    if (
                        layer is not root_scope
                        and layer_of_value.get(storage_id, layer) is not layer
                        and not is_view_of(recorded_value, layer.first_input)
                    ):
                        shared_value_ids.add(storage_id)
                for recorded_value in scope_item.output_values:
                    layer_of_value[id(recorded_value)] = layer
            elif not is_module_skipped(scope_item):
                visit(scope_item.items, scope_item if scope_item.first_input is not None else layer)
                if scope_item.stacked_axis is not None:  # each of its runs reads what comes from outside
                    operations = list(scope_item.steps())
                    inner_value_ids = {
                        id(output_value) for operation in operations for output_value in operation.output_values
                    }
                    read_storage_ids = {
                        id(input_value.storage) for operation in operations for input_value in operation.input_values
                    }
                    last_reader_ids.update(dict.fromkeys(read_storage_ids - inner_value_ids, id(scope_item)))

    visit(root_scope.items, root_scope)
    for module_scope in root_scope.scopes():
        if (
            module_scope.first_input is not None
            and module_scope.output is not None
            and last_reading_layers.get(id(module_scope.output.storage)) is module_scope
        ):
            shared_value_ids.add(id(module_scope.output.storage))  # the loop over the layers reads it after all steps
    return {
        storage_id: last_reader_id
        for storage_id, last_reader_id in last_reader_ids.items()
        if storage_id not in shared_value_ids
    }, shared_value_ids
