"""AdamW of `torch.optim` (torch/optim/adam.py of torch 2.13): two moments per element, and a step count per tensor.

Loshchilov & Hutter 2019, arXiv:1711.05101.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...costs.trained_tensors import TrainedTensor, packed_bytes, tensor_count, total_elements
from ...simulator.versions import is_older_version
from ...workload.execution import OptimizerImplementation
from .record import STEP_BYTES, TORCH_WITNESS, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from .step import OptimizedParameter, OptimizerStep

ONE_TEMPORARY_SINCE = (2, 1)
"""The first version of torch whose foreach AdamW makes one temporary per tensor; older ones make two."""


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of both moments and of the step counts."""
    element_count = total_elements(tensors)
    return {
        "exp_avg": packed_bytes(element_count, dtype),
        "exp_avg_sq": packed_bytes(element_count, dtype),
        "step": STEP_BYTES * tensor_count(tensors),
    }


def replay_step(optimizer_step: OptimizerStep) -> None:
    """Replays torch's `Adam.step` on tensors without values."""
    update_parameters(optimizer_step, optimizer_step.updated_parameters)


def update_parameters(optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]) -> None:
    """Replays `Adam.step` for some parameters; step counts are on the host unless the optimizer is fused."""
    from ...simulator.tensor import FLOAT32

    for parameter in optimizer_step.iterate_parameters(trained_parameters):
        if not parameter.states:
            if optimizer_step.implementation == "fused":
                with optimizer_step.allocating_states():
                    parameter.states.append(optimizer_step.aten.new_tensor((), FLOAT32))  # step
            parameter.states += optimizer_step.allocate_states_like(parameter.tensor, 2)  # exp_avg, exp_avg_sq
    if optimizer_step.implementation == "foreach":
        _multi_tensor_adam(optimizer_step, trained_parameters)
    elif optimizer_step.implementation == "loop":
        _single_tensor_adam(optimizer_step, trained_parameters)


def _multi_tensor_adam(optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]) -> None:
    """Allocates all denominators of a group while the previous group's denominators still exist, as foreach does.

    Before torch 2.1 denominators are a second copy beside the square roots (pytorch#104898).
    """
    aten, is_older_torch = optimizer_step.aten, is_older_version(optimizer_step.torch_version, ONE_TEMPORARY_SINCE)
    for group in optimizer_step.group_by_dtype(trained_parameters):
        exp_avg_sq_sqrt = [
            aten.new_like(parameter.states[-1]) for parameter in optimizer_step.iterate_parameters(group)
        ]
        if is_older_torch:
            denoms = [aten.new_like(parameter.states[-1]) for parameter in optimizer_step.iterate_parameters(group)]
        else:
            denoms = exp_avg_sq_sqrt
        optimizer_step.record_in_place_operation(group, denoms)


def _single_tensor_adam(optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]) -> None:
    """Allocates a square root and a quotient while the previous parameter's denominator still exists."""
    for parameter in optimizer_step.iterate_parameters(trained_parameters):
        denom = optimizer_step.aten.new_like(optimizer_step.aten.new_like(parameter.states[-1]))
        optimizer_step.record_in_place_operation(parameter.tensor, denom)


def build_torch_optimizers(
    parameters: Sequence[tuple[Any, bool]], implementation: OptimizerImplementation, has_momentum: bool
) -> Iterator[Any]:
    """Builds torch's optimizer. parameters: pairs of a parameter and whether it is the weight matrix of a layer."""
    import torch

    model_parameters = [parameter for parameter, _ in parameters]
    yield torch.optim.AdamW(model_parameters, foreach=implementation == "foreach", fused=implementation == "fused")


OPTIMIZER = Optimizer(
    name="adamw",
    implementations=("foreach", "fused", "loop"),
    state_bytes=state_bytes,
    trainer_default="fused",
    run_step=replay_step,
    build_torch_optimizers=build_torch_optimizers,
    aliases=("adam", "adamw-torch-fused"),
    supports_element_shards=True,
    witness=TORCH_WITNESS,
)
