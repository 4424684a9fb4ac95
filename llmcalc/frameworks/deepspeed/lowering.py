"""Runs a model whose parameters are gathered before each of its modules, and released after it."""

from __future__ import annotations

from typing import Any

from ...flow.program import Step
from ...flow.tree import Use
from ...flow.value import Value, Weight
from ...ops import Linear
from ...simulator.lowering import Frame, Path
from ...simulator.profiles.eager import Eager
from ...simulator.strides import Shape
from ...simulator.tensor import Dtype, Saved, Tensor
from .param_coordinator import Coordinator


class Unpacked:
    """A hook of a node that unpacks a saved tensor, which its backward does not read."""

    def __init__(self, saved: Saved) -> None:
        self.saved = saved

    def __call__(self) -> None:
        self.saved.unpack()


class Gathered(Eager):
    """Runs a program whose parameters are gathered. A module is what has parameters of its own.

    coordinator: which parameters are whole; None in a run that only finds them.
    opened: the modules that the step which runs has used first. of_frames: those that stay to the end of each frame.
    """

    coordinator: Coordinator | None = None

    def gather_with(self, coordinator: Coordinator) -> None:
        """From here on parameters are gathered."""
        self.coordinator = coordinator
        self.opened: list[Path] = []
        self.of_frames: list[list[Path]] = []

    # --- parameters -------------------------------------------------------------------------------------------------

    def made_parameter(self, key: Path, like: Tensor) -> Tensor:
        if self.coordinator is None or key in self.buffers:
            return super().made_parameter(key, like)
        return self.coordinator.add(key, like).whole

    @property
    def parameters(self) -> list[tuple[Any, Tensor]]:
        if self.coordinator is None:
            return super().parameters
        return [(one.path, one.whole) for one in self.coordinator.parameters if one.whole.leaf]

    def never_read(self, name: str, use: Use) -> list[Tensor]:
        made = super().never_read(name, use)
        if self.coordinator is None:
            return made
        number = len(self.unused)
        return [self.coordinator.add(("unread", number, i, name), one).whole for i, one in enumerate(made)]

    def parameter(self, key: Path, shape: Shape, dtype: Dtype, trained: bool) -> Tensor:
        return self.used(super().parameter(key, shape, dtype, trained))

    def _of(self, weight: Weight, name: str, shape: Shape) -> Tensor:
        return self.used(super()._of(weight, name, shape))

    def used(self, weight: Tensor) -> Tensor:
        """Gathers a parameter, with those of its module, if that does not run yet."""
        if self.coordinator is not None and not self.prepares:
            one = self.coordinator.by_tensor.get(id(weight))
            if one is not None and not any(one.module in found for found in (self.opened, *self.of_frames)):
                self.opened.append(one.module)
                self.coordinator.fetch(one.module)
        return weight

    # --- running ----------------------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        if self.coordinator is None:
            super().step(step)
            return
        before, self.opened = self.opened, []
        x = self._bound(step.ins[0]) if self.adapters is not None and isinstance(step.op, Linear) else None
        given = self.values[id(x)] if x is not None and self.graph.enabled else None
        apart = given is not None and not given.needs_grad
        try:
            super().step(step)
            if given is not None and not apart:
                self._save_input(given, step.outs[0])
        finally:  # a part that runs again stops at the last tensor that is needed
            given = None
            found, self.opened = self.opened, before
        for module in found:
            if module == self.module_path():
                self.of_frames[-1].append(module)
            elif apart and not any(one.whole.leaf for one in self.coordinator.modules[module]):
                self.coordinator.release(module)  # no gradient passes a frozen layer whose input needs none
            else:
                self._finish(module, step.outs[0] if step.outs else None)

    def _save_input(self, x: Tensor, out: Value) -> None:
        """A product saves its input even where its weight is frozen (`LinearFunctionForZeroStage3`)."""
        bound = self._bound(out)
        node = None if bound is None else self.values[id(bound)].node
        if node is not None:
            node.hooks.append(Unpacked(self.graph.save(x)))

    def _module(self, frame: Frame) -> None:
        if self.coordinator is None:
            super()._module(frame)
            return
        self.of_frames.append([])
        try:
            super()._module(frame)
        finally:
            found = self.of_frames.pop()
        for module in found:
            self._finish(module, frame.scope.gives)

    def _finish(self, module: Path, out: Value | None) -> None:
        """A module has run: its parameters are released, and gathered again before its backward pass."""
        assert self.coordinator is not None
        bound = self._bound(out)
        node = None if bound is None else self.values[id(bound)].node
        if node is not None:
            node.hooks.append(self.coordinator.before_backward(module))
        self.coordinator.release(module)
