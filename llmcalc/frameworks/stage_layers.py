"""The layers of a pipeline stage that a measurement runs, as repeats of a layer pattern."""

from __future__ import annotations

from functools import cached_property

from ..flow.record import Flow
from ..simulator.layer_stacks import LayerStack, program_stacks
from ..simulator.lowering import Lowering


class StageLayers:
    """The layers of a pipeline stage, of which a measurement can run fewer repeats."""

    def __init__(self, program: Flow, lowering: Lowering) -> None:
        self._program: Flow = program
        self._lowering: Lowering = lowering

    def set_repeats(self, layer_repeats: int | None) -> None:
        """Sets how many repeats of the layer pattern the stage runs; None for all layers."""
        self._lowering.run_repeats_by_stack = {} if layer_repeats is None else {0: layer_repeats}

    @cached_property
    def stack(self) -> LayerStack | None:
        """The layer stack of the stage; None if the stage has several stacks or none."""
        stacks = program_stacks(self._program.root, 1, self._lowering.first_layer_index)
        return stacks[0] if len(stacks) == 1 and not stacks[0].remaining_repeats else None

    @property
    def has_one_layer_kind(self) -> bool:
        """Whether all layers of the stage are of one kind."""
        stack, layers_before = self.stack, self._lowering.first_layer_index
        return stack is not None and (stack.layers_before, stack.layer_period, stack.layers_after) == (
            layers_before,
            1,
            0,
        )
