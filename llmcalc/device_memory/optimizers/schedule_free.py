"""Schedule-free AdamW and SGD (schedulefree/adamw_schedulefree.py and sgd_schedulefree.py of version 1.4).

Each tensor has a second copy of itself, z; AdamW's also has the second moment, and its step writes over the gradients
(Defazio 2024, arXiv:2405.15682).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...costs.trained_tensors import TrainedTensor, packed_bytes, total_elements
from ...evidence import source_code_witness
from .record import STEP_COMPARISON_TEST, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from .step import OptimizerStep


def state_bytes(state_names: tuple[str, ...], tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of optimizer states that have the tensor's number of elements."""
    return dict.fromkeys(state_names, packed_bytes(total_elements(tensors), dtype))


def allocate_states(state_names: tuple[str, ...], optimizer_step: OptimizerStep) -> None:
    """Allocates optimizer states that do not exist yet; `SGDScheduleFree.step` allocates nothing else."""
    for parameter in optimizer_step.iterate_parameters(optimizer_step.updated_parameters):
        parameter.states = parameter.states or optimizer_step.allocate_states_like(parameter.tensor, len(state_names))


def adamw_step(state_names: tuple[str, ...], optimizer_step: OptimizerStep) -> None:
    """Replays `AdamWScheduleFree.step`: foreach allocates all denominators at once, a loop one after another."""
    allocate_states(state_names, optimizer_step)
    aten, updated_parameters = optimizer_step.aten, optimizer_step.updated_parameters
    if optimizer_step.implementation == "foreach":
        denominators = [
            aten.new_like(parameter.states[-1]) for parameter in optimizer_step.iterate_parameters(updated_parameters)
        ]
        optimizer_step.record_in_place_operation(updated_parameters, denominators)
        return
    for parameter in optimizer_step.iterate_parameters(updated_parameters):
        denominator = aten.new_like(parameter.states[-1])
        optimizer_step.record_in_place_operation(parameter.grad, denominator)


OPTIMIZERS = {
    f"schedule-free-{name}": Optimizer(
        name=f"schedule-free-{name}",
        implementations=("foreach", "loop"),
        state_bytes=partial(state_bytes, state_names),
        run_step=partial(replay_step, state_names),
        reason_not_in_torch="schedulefree is not a part of torch",
        supports_element_shards=True,
        witness=source_code_witness(f"schedulefree/{name}_schedulefree.py", STEP_COMPARISON_TEST),
    )
    for name, replay_step, state_names in (("adamw", adamw_step, ("z", "exp_avg_sq")), ("sgd", allocate_states, ("z",)))
}
