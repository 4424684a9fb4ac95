"""Access to the steps of a module by name."""

from __future__ import annotations

from collections.abc import Iterator

from .....flow.program import Alternatives, Item, Scope, Step


class Steps:
    """The steps of a module by name, without its submodules; of alternatives, the first branch.

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
    """Returns the steps of a module without its submodules; of alternatives, the first branch."""
    for item in module_scope.items:
        if isinstance(item, Alternatives):
            yield from module_steps(next(iter(item.branches.values())))
        elif isinstance(item, Step):
            yield item


def every_step(items: list[Item]) -> Iterator[Step]:
    """Yields all steps of some items, in all alternatives."""
    for item in items:
        if isinstance(item, Alternatives):
            for branch in item.branches.values():
                yield from every_step(branch.items)
        elif isinstance(item, Scope):
            yield from every_step(item.items)
        else:
            yield item
