"""Replays one step of the optimizer with this name."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InputError
from ...simulator.aten import Aten
from ...simulator.autograd import AutogradGraph
from ...simulator.tensor import Dtype
from ...workload.execution import OptimizerImplementation
from .registry import optimizer
from .step import OptimizedParameter, OptimizerStep


def run_step(
    autograd_graph: AutogradGraph,
    optimizer_name: str,
    trained_parameters: Sequence[OptimizedParameter],
    implementation: OptimizerImplementation | None = None,
    has_momentum: bool = False,
    dtype: Dtype | None = None,
    torch_version: str = "",
    pages_states: bool = False,
) -> None:
    """Replays one step of the named optimizer. The first step allocates the optimizer states.

    optimizer_name: of an optimizer, or an alias of one. trained_parameters: all parameters, in the model's order.
    implementation: how the library runs the step; None (default) for the library's own.
    has_momentum, dtype, torch_version, pages_states: as in `OptimizerStep`.
    Raises `InputError` for an unknown optimizer, or an implementation that it does not have.
    """
    optimizer_record = optimizer(optimizer_name)
    chosen_implementation = implementation or optimizer_record.implementations[0]
    if chosen_implementation not in optimizer_record.implementations:
        implementations_text = " or ".join(optimizer_record.implementations)
        raise InputError(
            f"--optimizer-impl {chosen_implementation}: {optimizer_name} does not have it; expected "
            f"{implementations_text}"
        )
    with autograd_graph.no_grad():
        optimizer_record.run_step(
            OptimizerStep(
                Aten(autograd_graph),
                trained_parameters,
                chosen_implementation,
                has_momentum,
                dtype,
                torch_version,
                pages_states,
            )
        )
