"""Access to the operations of a module by name."""

from __future__ import annotations

from collections.abc import Iterator

from .....flow.program import Alternatives, Item, Scope, Step


class Steps:
    """The operations of a module by name, without submodules; of alternative branches, the first.

    named: name → step. acts: the names of its activations, in their order.
    """

    def __init__(self, module_scope: Scope) -> None:
        self.all: list[Step] = list(module_steps(module_scope))
        self.named: dict[str, Step] = {operation.name: operation for operation in self.all if operation.name}
        self.acts: list[str] = [operation.options["kind"] for operation in self.all if operation.verb == "act"]

    def __contains__(self, name: str) -> bool:
        return name in self.named

    def __getitem__(self, name: str) -> Step:
        return self.named[name]


def module_steps(module_scope: Scope) -> Iterator[Step]:
    """Returns the operations of a module without its submodules; of alternative branches, the first."""
    for item in module_scope.items:
        if isinstance(item, Alternatives):
            yield from module_steps(next(iter(item.branches.values())))
        elif isinstance(item, Step):
            yield item


def every_step(items: list[Item]) -> Iterator[Step]:
    """Yields all operations of these program items, in every alternative branch."""
    for item in items:
        if isinstance(item, Alternatives):
            for branch in item.branches.values():
                yield from every_step(branch.items)
        elif isinstance(item, Scope):
            yield from every_step(item.items)
        else:
            yield item
