"""Schedule-free SGD (schedulefree/sgd_schedulefree.py of version 1.4): a second copy of each tensor, z."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...costs.trained_tensors import TrainedTensor, bytes_of, elements_of
from ...evidence import by_source
from .record import COMPARISON, Optimizer, States

if TYPE_CHECKING:
    from .step import OptimizerStep


def states(tensors: Sequence[TrainedTensor], dtype: str) -> States:
    """Returns the bytes of the second copy of the weights (z)."""
    return {"z": bytes_of(elements_of(tensors), dtype)}


def step(optimizer_step: OptimizerStep) -> None:
    """Runs `SGDScheduleFree.step`, which allocates nothing but the second copies of the weights (z)."""
    for parameter in optimizer_step.loop_over(optimizer_step.updated):
        if not parameter.states:
            with optimizer_step.counted_as_states():
                parameter.states = [optimizer_step.t.like(parameter.tensor, dtype=optimizer_step.dtype)]


OPTIMIZER = Optimizer(
    name="schedule-free-sgd",
    implementations=("foreach", "loop"),
    states=states,
    step=step,
    not_in_torch="schedulefree is not a part of torch",
    by_element=True,
    witness=by_source("schedulefree/sgd_schedulefree.py", COMPARISON),
)
