"""GaLore's AdamW (galore_torch/adamw.py and galore_projector.py of version 1.0; Zhao 2024, arXiv:2403.03507).

The projector is a part of the singular vectors of a gradient. In fp32 it is a view, which keeps the whole square of
singular vectors alive; in other formats it is a copy of rank rows or columns. `galore-r64` has rank 64. The
decomposition's own work buffers are not counted: they exist in the steps that renew the projector, each 200th.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...algebra import Number, minimum
from ...costs.trained_tensors import TrainedTensor, packed_bytes, sum_over_tensors, total_elements
from ...ops import ParamTensor
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
    """Returns the `Optimizer` record of GaLore with projections of this rank."""

    def clipped_rank(tensor: ParamTensor) -> Number:
        return minimum(rank, shorter_side(tensor))

    def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
        """Returns the bytes of projectors and of both moments."""
        projected_tensors, other_tensors = split_by_projection(tensors)
        projector_rank = shorter_side if dtype == "float32" else clipped_rank
        projector_elements = sum_over_tensors(
            projected_tensors, lambda tensor: projector_rank(tensor) * shorter_side(tensor)
        )
        projected_elements = sum_over_tensors(
            projected_tensors, lambda tensor: clipped_rank(tensor) * longer_side(tensor)
        )
        moment_bytes = packed_bytes(projected_elements + total_elements(other_tensors), dtype)
        return {
            "ortho_matrix": packed_bytes(projector_elements, dtype),
            "exp_avg": moment_bytes,
            "exp_avg_sq": moment_bytes,
        }

    def replay_step(optimizer_step: OptimizerStep) -> None:
        """Replays `AdamW.step`; temporary tensors live until the next parameter's replace them."""
        aten = optimizer_step.aten
        grad = denom = norm_grad = None
        for parameter in parameters_in_update_order(optimizer_step):
            grad, dtype = parameter.grad, optimizer_step.state_format or parameter.grad.dtype
            if parameter.is_layer_matrix:
                if not parameter.states:
                    parameter.states.append(_allocate_projector(optimizer_step, grad, rank, dtype))
                grad = aten.new_tensor(projected_shape(grad, min(rank, *grad.shape)), dtype)
            if len(parameter.states) < 2:
                parameter.states += optimizer_step.allocate_states_like(grad, 2)  # exp_avg, exp_avg_sq
            denom = aten.new_like(parameter.states[-1])
            norm_grad = aten.new_like(denom)
            if parameter.is_layer_matrix:
                norm_grad = aten.new_like(aten.new_tensor(parameter.grad.shape, dtype))  # projected back, then scaled
            optimizer_step.record_in_place_operation(parameter.tensor, grad, denom, norm_grad)

    return low_rank_optimizer(
        "galore",
        rank,
        optimizer_name,
        state_bytes,
        replay_step,
        "galore_torch",
        "galore_torch/adamw.py; without its decomposition's work buffers",
    )


def _allocate_projector(optimizer_step: OptimizerStep, gradient: Tensor, rank: int, dtype: Dtype) -> Tensor:
    """Allocates the tensors of `get_orthogonal_matrix`; returns the projector, or the tensor that it is a view of."""
    from ...simulator.tensor import FLOAT32

    aten, (row_count, column_count) = optimizer_step.aten, gradient.shape
    shorter_side = min(row_count, column_count)
    rank, is_right_projection = min(rank, shorter_side), is_projected_from_the_right(gradient)
    fp32_gradient = aten.to(gradient, FLOAT32)
    is_float32 = dtype is FLOAT32
    left_vectors = aten.new_tensor((row_count, shorter_side), FLOAT32) if is_right_projection else None  # U
    with optimizer_step.allocating_states():
        # Vh of a tall matrix, U of a wide one
        square_matrix = aten.new_tensor((shorter_side, shorter_side), FLOAT32) if is_float32 else None
    if square_matrix is None:
        square_matrix = aten.new_tensor((shorter_side, shorter_side), FLOAT32)
    right_vectors = aten.new_tensor((shorter_side, column_count), FLOAT32) if not is_right_projection else None  # Vh
    singular_values = aten.new_tensor((shorter_side,), FLOAT32)
    diagonal_matrix = aten.new_tensor((rank, rank), FLOAT32)
    projector_product = aten.new_tensor((row_count, rank) if is_right_projection else (rank, column_count), FLOAT32)
    del diagonal_matrix
    optimizer_step.record_in_place_operation(
        projector_product, fp32_gradient, left_vectors, right_vectors, singular_values
    )
    if is_float32:
        return square_matrix
    with optimizer_step.allocating_states():
        return aten.new_tensor((rank, column_count) if is_right_projection else (row_count, rank), dtype)


OPTIMIZER = optimizer_of_projection_rank(DEFAULT_PROJECTION_RANK, "galore")
