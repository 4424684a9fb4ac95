"""Schedule-free AdamW (schedulefree/adamw_schedulefree.py of version 1.4; Defazio 2024, arXiv:2405.15682).

Each tensor has a second copy of itself, z, and the second moment. The step writes over the gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...costs.trained_tensors import TrainedTensor, bytes_of, elements_of
from ...evidence import by_source
from .record import COMPARISON, Optimizer, States

if TYPE_CHECKING:
    from .step import OptimizerStep


def states(tensors: Sequence[TrainedTensor], dtype: str) -> States:
    """Returns the bytes of the second copy of the weights (z), and of the second moment."""
    size = bytes_of(elements_of(tensors), dtype)
    return {"z": size, "exp_avg_sq": size}


def step(optimizer_step: OptimizerStep) -> None:
    """Runs `AdamWScheduleFree.step`: foreach allocates all denominators together, a loop one at a time."""
    for parameter in optimizer_step.loop_over(optimizer_step.updated):
        if not parameter.states:
            with optimizer_step.counted_as_states():
                parameter.states = [
                    optimizer_step.t.like(parameter.tensor, dtype=optimizer_step.dtype) for _ in range(2)
                ]  # z, exp_avg_sq
    if optimizer_step.implementation == "foreach":
        denominators = [
            optimizer_step.t.like(parameter.states[-1])
            for parameter in optimizer_step.loop_over(optimizer_step.updated)
        ]
        optimizer_step.write(optimizer_step.updated, denominators)
        return
    for parameter in optimizer_step.loop_over(optimizer_step.updated):
        denominator = optimizer_step.t.like(parameter.states[-1])
        optimizer_step.write(parameter.grad, denominator)


OPTIMIZER = Optimizer(
    name="schedule-free-adamw",
    implementations=("foreach", "loop"),
    states=states,
    step=step,
    not_in_torch="schedulefree is not a part of torch",
    by_element=True,
    witness=by_source("schedulefree/adamw_schedulefree.py", COMPARISON),
)
