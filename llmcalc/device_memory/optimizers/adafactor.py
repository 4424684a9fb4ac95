"""Adafactor of `torch.optim` (torch/optim/_adafactor.py of torch 2.13): one mean per row and per column of a matrix.

Shazeer & Stern 2018, arXiv:1804.04235, §3. A vector has one value per element. Each tensor has a step count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...algebra import Number
from ...costs.trained_tensors import TrainedTensor, packed_bytes, sum_over_tensors, tensor_count
from ...ops import ParamTensor
from ...workload.execution import OptimizerImplementation
from .record import STEP_BYTES, TORCH_WITNESS, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from ...simulator.tensor import Dtype, Tensor
    from .step import OptimizedParameter, OptimizerStep


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of row and column means (of the second moment for vectors), and of step counts."""
    count_by_state = {"row_var": _row_mean_count, "col_var": _column_mean_count, "variance": _second_moment_count}
    return {
        **{
            state_name: packed_bytes(sum_over_tensors(tensors, count_elements), dtype)
            for state_name, count_elements in count_by_state.items()
        },
        "step": STEP_BYTES * tensor_count(tensors),
    }


def _row_mean_count(tensor: ParamTensor) -> Number:
    """Returns the number of row means: elements divided by the last axis's length; 0 for a vector."""
    return ParamTensor(tensor.shape[:-1], tensor.role).size if len(tensor.shape) > 1 else 0


def _column_mean_count(tensor: ParamTensor) -> Number:
    """Returns the number of column means: elements divided by the second to last axis's length; 0 for a vector."""
    return ParamTensor((*tensor.shape[:-2], tensor.shape[-1]), tensor.role).size if len(tensor.shape) > 1 else 0


def _second_moment_count(tensor: ParamTensor) -> Number:
    return tensor.size if len(tensor.shape) < 2 else 0


def replay_step(optimizer_step: OptimizerStep) -> None:
    """Replays `Adafactor.step`, with each parameter's step count on the host."""
    trained_parameters, dtype = optimizer_step.updated_parameters, optimizer_step.state_format
    for parameter in optimizer_step.iterate_parameters(trained_parameters):
        if not parameter.states and _is_factored(parameter):
            with optimizer_step.allocating_states():
                parameter.states = [
                    _allocate_reduction(optimizer_step, parameter.grad, axis, dtype) for axis in (-1, -2)
                ]
        elif not parameter.states:
            parameter.states = optimizer_step.allocate_states_like(parameter.grad)  # variance
    if optimizer_step.implementation == "foreach":
        _multi_tensor_adafactor(optimizer_step, trained_parameters)
    else:
        _single_tensor_adafactor(optimizer_step, trained_parameters)


def _is_factored(parameter: OptimizedParameter) -> bool:
    """Whether a parameter's second moment is stored as row and column means, as for all tensors except vectors."""
    return len(parameter.grad.shape) > 1


def _allocate_reduction(optimizer_step: OptimizerStep, tensor: Tensor, axis: int, dtype: Dtype | None = None) -> Tensor:
    """Allocates the result of a reduction of a tensor along one axis, whose length becomes 1."""
    shape = list(tensor.shape)
    shape[axis] = 1
    return optimizer_step.aten.new_tensor(tuple(shape), dtype or tensor.dtype)


def _allocate_norm(optimizer_step: OptimizerStep, tensor: Tensor) -> None:
    """Allocates a tensor's norm, which the host reads."""
    optimizer_step.aten.new_tensor((), tensor.dtype)


def _allocate_mean_product(optimizer_step: OptimizerStep, row_var: Tensor, col_var: Tensor) -> Tensor:
    """Allocates the product of row means and column means."""
    return optimizer_step.aten.new_tensor((*row_var.shape[:-1], col_var.shape[-1]), row_var.dtype)


def _single_tensor_adafactor(optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]) -> None:
    """Replays updates parameter by parameter; an update's temporary tensors live until the next update."""
    for parameter in optimizer_step.iterate_parameters(trained_parameters):
        grad = parameter.grad
        _allocate_norm(optimizer_step, parameter.tensor)
        if _is_factored(parameter):
            row_var, col_var = parameter.states
            row_mean = _allocate_reduction(optimizer_step, grad, -1)
            optimizer_step.record_in_place_operation(row_var, row_mean)
            col_mean = _allocate_reduction(optimizer_step, grad, -2)
            optimizer_step.record_in_place_operation(col_var, col_mean)
            var_estimate = _allocate_mean_product(optimizer_step, row_var, col_var)
            optimizer_step.record_in_place_operation(var_estimate, _allocate_reduction(optimizer_step, row_var, -2))
        else:
            variance = parameter.states[0]
            grad_squared = optimizer_step.aten.new_like(grad)
            optimizer_step.record_in_place_operation(variance, grad_squared)
            var_estimate = optimizer_step.aten.new_like(variance)
        parameter_update = var_estimate
        _allocate_norm(optimizer_step, parameter_update)
        optimizer_step.record_in_place_operation(parameter.tensor, parameter_update)


def _multi_tensor_adafactor(optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]) -> None:
    """Replays updates group by group; a group's updates live until the next group's estimates exist."""
    iterate_parameters, tensor_like = optimizer_step.iterate_parameters, optimizer_step.aten.new_like
    for group in _group_by_dtype_and_factors(optimizer_step, trained_parameters):
        for parameter in iterate_parameters(group):
            _allocate_norm(optimizer_step, parameter.tensor)
        if _is_factored(group[0]):
            row_means = [
                _allocate_reduction(optimizer_step, parameter.grad, -1) for parameter in iterate_parameters(group)
            ]
            del row_means
            col_means = [
                _allocate_reduction(optimizer_step, parameter.grad, -2) for parameter in iterate_parameters(group)
            ]
            del col_means
            var_estimates = [
                _allocate_mean_product(optimizer_step, *parameter.states) for parameter in iterate_parameters(group)
            ]
            row_var_means = [
                _allocate_reduction(optimizer_step, parameter.states[0], -2) for parameter in iterate_parameters(group)
            ]
            del row_var_means
        else:
            grads_squared = [tensor_like(parameter.grad) for parameter in iterate_parameters(group)]
            del grads_squared
            var_estimates = [tensor_like(parameter.states[0]) for parameter in iterate_parameters(group)]
        parameter_updates = var_estimates
        for _, parameter_update in zip(iterate_parameters(group), parameter_updates, strict=True):
            _allocate_norm(optimizer_step, parameter_update)
        optimizer_step.record_in_place_operation(group, parameter_updates)


def _group_by_dtype_and_factors(
    optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]
) -> list[list[OptimizedParameter]]:
    """Groups parameters by device, number format and rank (`_group_tensors_by_device_dtype_and_is_multidim`)."""
    groups_by_format: dict[tuple[Dtype, bool], list[OptimizedParameter]] = {}
    for same_dtype_parameters in optimizer_step.group_by_dtype(trained_parameters):
        for parameter in same_dtype_parameters:
            groups_by_format.setdefault((parameter.tensor.dtype, _is_factored(parameter)), []).append(parameter)
    return list(groups_by_format.values())


def build_torch_optimizers(
    parameters: Sequence[tuple[Any, bool]], implementation: OptimizerImplementation, has_momentum: bool
) -> Iterator[Any]:
    """Builds torch's optimizer. parameters: pairs of a parameter and whether it is the weight matrix of a layer."""
    import torch

    yield torch.optim.Adafactor([tensor for tensor, _ in parameters], foreach=implementation == "foreach")


OPTIMIZER = Optimizer(
    name="adafactor",
    implementations=("loop", "foreach"),
    state_bytes=state_bytes,
    run_step=replay_step,
    build_torch_optimizers=build_torch_optimizers,
    depends_on_values=True,
    note="a matrix has one mean per row and one per column, a vector its whole second moment",
    uncounted_work="means of rows and columns",
    states_per_element=lambda flat: (1, 0) if flat else None,
    witness=TORCH_WITNESS,
)
