"""APOLLO's AdamW with random projections of gradients (apollo_torch/apollo.py of version 1.0.3).

The projections are in random_projector.py (Zhu 2024, arXiv:2412.05270).

The moments of a projected gradient only scale the gradient itself, by one factor per channel. `apollo-r256` has rank
256; without a number it is 128.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...costs.trained_tensors import TrainedTensor, packed_bytes, sum_over_tensors, tensor_count, total_elements
from .low_rank import (
    DEFAULT_PROJECTION_RANK,
    is_projected_from_the_right,
    longer_side,
    low_rank_optimizer,
    parameters_in_update_order,
    projected_shape,
    shorter_side,
    split_by_projection,
)
from .record import Optimizer, StateBytesByName

if TYPE_CHECKING:
    from ...simulator.tensor import Dtype, Tensor
    from .step import OptimizerStep


def optimizer_of_projection_rank(rank: int, optimizer_name: str) -> Optimizer:
    """Returns the `Optimizer` record of APOLLO with projections of this rank."""

    def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
        """Returns the bytes of projectors, both moments, and the norm of each matrix's last scaled gradient."""
        projected_tensors, other_tensors = split_by_projection(tensors)
        projected_elements = sum_over_tensors(projected_tensors, lambda tensor: rank * longer_side(tensor))
        moment_bytes = packed_bytes(projected_elements + total_elements(other_tensors), dtype)
        return {
            "ortho_matrix": packed_bytes(
                sum_over_tensors(projected_tensors, lambda tensor: rank * shorter_side(tensor)), dtype
            ),
            "exp_avg": moment_bytes,
            "exp_avg_sq": moment_bytes,
            "scaled_grad": packed_bytes(tensor_count(projected_tensors), dtype),
        }

    def replay_step(optimizer_step: OptimizerStep) -> None:
        """Replays `AdamW.step`; temporary tensors live until the next parameter's replace them."""
        aten = optimizer_step.aten
        grad = denom = norm_grad = scaling_factors = scaled_grad = None
        for parameter in parameters_in_update_order(optimizer_step):
            grad, dtype = parameter.grad, optimizer_step.state_format or parameter.grad.dtype
            if parameter.is_layer_matrix:
                if not parameter.states:
                    parameter.states.append(_allocate_projector(optimizer_step, grad, rank, dtype))
                grad = aten.new_tensor(projected_shape(parameter.grad, rank), dtype)
            if len(parameter.states) < 2:
                parameter.states[1:] = optimizer_step.allocate_states_like(grad, 2)  # exp_avg, exp_avg_sq
            denom = aten.new_like(parameter.states[2 if parameter.is_layer_matrix else -1])
            norm_grad = aten.new_like(denom)
            if parameter.is_layer_matrix:
                scaling_factors = _allocate_channel_ratios(
                    optimizer_step, norm_grad, is_projected_from_the_right(parameter.grad)
                )
                scaled_grad = aten.new_like(parameter.grad, dtype=dtype)
                is_first_step = len(parameter.states) < 4
                if not is_first_step:
                    norm_limit = aten.new_tensor((), dtype)
                    scaled_grad = aten.new_like(scaled_grad)
                    optimizer_step.record_in_place_operation(scaled_grad, norm_limit)
                with optimizer_step.allocating_states():
                    parameter.states[3:] = [aten.new_tensor((), dtype)]  # scaled_grad
                norm_grad = scaled_grad
            optimizer_step.record_in_place_operation(parameter.tensor, grad, denom, norm_grad, scaling_factors)

    return low_rank_optimizer(
        "apollo", rank, optimizer_name, state_bytes, replay_step, "apollo_torch", "apollo_torch/apollo.py"
    )


def _allocate_projector(optimizer_step: OptimizerStep, gradient: Tensor, rank: int, dtype: Dtype) -> Tensor:
    """Allocates the fp32 gradient, a random matrix and the scaled random matrix, from which gradients are projected."""
    from ...simulator.tensor import FLOAT32

    aten, (row_count, column_count) = optimizer_step.aten, gradient.shape
    shape = (rank, column_count) if is_projected_from_the_right(gradient) else (row_count, rank)
    fp32_gradient = aten.to(gradient, FLOAT32)
    random_matrix = aten.new_tensor(shape, FLOAT32)
    if dtype is FLOAT32:
        with optimizer_step.allocating_states():
            return aten.new_like(random_matrix)
    scaled_matrix = aten.new_like(random_matrix)
    del random_matrix
    optimizer_step.record_in_place_operation(scaled_matrix, fp32_gradient)
    with optimizer_step.allocating_states():
        return aten.new_like(scaled_matrix, dtype=dtype)


def _allocate_channel_ratios(optimizer_step: OptimizerStep, norm_grad: Tensor, is_right_projection: bool) -> Tensor:
    """Allocates the ratio of two norms for each channel of a gradient."""
    aten, channel_count = optimizer_step.aten, norm_grad.shape[0 if is_right_projection else 1]
    projected_norm, gradient_norm = (aten.new_tensor((channel_count,), norm_grad.dtype) for _ in range(2))
    gradient_norm = aten.new_like(gradient_norm)
    return aten.new_like(projected_norm, gradient_norm)


OPTIMIZER = optimizer_of_projection_rank(DEFAULT_PROJECTION_RANK, "apollo")
