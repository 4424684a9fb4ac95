"""Access to the operations of a module by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from .....flow.program import AlternativeBranches, ModuleScope, Step
from .....ops import Op

OpClass = TypeVar("OpClass", bound=Op)


class ModuleSteps:
    """A module's operations by name, without submodules; of alternative branches only the first branch's.

    operations_by_name: name → step. activation_names: the names of its activations, in their order.
    """

    def __init__(self, module_scope: ModuleScope) -> None:
        self.steps: list[Step] = list(module_steps(module_scope))
        self.operations_by_name: dict[str, Step] = {
            operation.name: operation for operation in self.steps if operation.name
        }
        self.activation_names: list[str] = [
            operation.options["kind"] for operation in self.steps if operation.verb == "act"
        ]

    def __contains__(self, step_name: str) -> bool:
        return step_name in self.operations_by_name

    def __getitem__(self, step_name: str) -> Step:
        return self.operations_by_name[step_name]

    def op(self, step_name: str, op_class: type[OpClass]) -> OpClass:
        """Returns the op (the primitive with its arithmetic) of a named operation. op_class: its expected class."""
        op = self.operations_by_name[step_name].op
        assert isinstance(op, op_class)
        return op


def module_steps(module_scope: ModuleScope) -> Iterator[Step]:
    """Returns a module's operations without submodules; of alternative branches only the first branch's."""
    for scope_item in module_scope.items:
        if isinstance(scope_item, AlternativeBranches):
            yield from module_steps(next(iter(scope_item.branches.values())))
        elif isinstance(scope_item, Step):
            yield scope_item
