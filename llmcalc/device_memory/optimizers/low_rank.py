"""States of optimizers that project the gradients of layer matrices to a low rank: GaLore and APOLLO.

A gradient of m rows and n columns becomes max(m, n) × rank numbers: by a projector of rank × n from the right where it
has at least as many rows as columns, else by one of m × rank from the left (`proj_type` std in galore_torch 1.0 and
apollo_torch 1.0.3). All other tensors have two whole moments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...algebra import Number, minimum
from ...costs.trained_tensors import TrainedTensor
from ...evidence import source_code_witness
from ...ops import ParamTensor
from .record import LIBRARY_COMPARISON_TEST, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from ...simulator.strides import Shape
    from ...simulator.tensor import Tensor
    from .step import OptimizedParameter, OptimizerStep

DEFAULT_PROJECTION_RANK = 128
"""Default projection rank of GaLore and APOLLO, as in transformers (trainer_optimizer.py of 5.23)."""

LOW_RANK_NOTE = (
    "projected gradients for the weight matrices of linear layers in the layers, two whole moments for other tensors"
)


def low_rank_optimizer(
    projection_method: str,
    rank: int,
    optimizer_name: str,
    state_bytes: Callable[[Sequence[TrainedTensor], str], StateBytesByName],
    run_step: Callable[[OptimizerStep], None],
    library: str,
    optimizer_source: str,
) -> Optimizer:
    """Returns the `Optimizer` record of an optimizer that projects gradients to this rank.

    projection_method: the optimizer's name without a rank. library: its package.
    optimizer_name, state_bytes, run_step: as of `Optimizer`. optimizer_source: the file of the package that was read.
    """
    return Optimizer(
        name=optimizer_name,
        implementations=("loop",),
        state_bytes=state_bytes,
        run_step=run_step,
        reason_not_in_torch=f"{library} is not a part of torch",
        aliases=(f"{projection_method}-adamw",) if rank == DEFAULT_PROJECTION_RANK else (),
        note=LOW_RANK_NOTE,
        separates_layer_matrices=True,
        uncounted_work="projections of gradients",
        witness=source_code_witness(optimizer_source, LIBRARY_COMPARISON_TEST),
    )


def split_by_projection(tensors: Sequence[TrainedTensor]) -> tuple[list[TrainedTensor], list[TrainedTensor]]:
    """Returns the tensors whose gradients are projected, and the other tensors."""
    projected_tensors = [tensor for tensor in tensors if tensor.is_layer_matrix]
    return projected_tensors, [tensor for tensor in tensors if not tensor.is_layer_matrix]


def shorter_side(tensor: ParamTensor) -> Number:
    """Returns the smaller of a matrix's numbers of rows and columns."""
    row_count, column_count = tensor.shape
    return minimum(row_count, column_count)


def longer_side(tensor: ParamTensor) -> Number:
    """Returns the larger of a matrix's numbers of rows and columns."""
    row_count, column_count = tensor.shape
    return row_count + column_count - shorter_side(tensor)


def parameters_in_update_order(optimizer_step: OptimizerStep) -> Iterator[OptimizedParameter]:
    """Yields parameters in the order of LLaMA-Factory's groups: vectors, other tensors, matrices of layers."""
    other_parameters = [parameter for parameter in optimizer_step.updated_parameters if not parameter.is_layer_matrix]
    vectors = [parameter for parameter in other_parameters if len(parameter.grad.shape) < 2]
    decayed_parameters = [parameter for parameter in other_parameters if len(parameter.grad.shape) >= 2]
    matrices = [parameter for parameter in optimizer_step.updated_parameters if parameter.is_layer_matrix]
    yield from optimizer_step.iterate_parameters([*vectors, *decayed_parameters, *matrices])


def is_projected_from_the_right(gradient: Tensor) -> bool:
    """Whether the projector is multiplied from the right, because the matrix has at least as many rows as columns."""
    row_count, column_count = gradient.shape
    return bool(row_count >= column_count)


def projected_shape(gradient: Tensor, rank: int) -> Shape:
    """Returns the shape of a projected gradient."""
    row_count, column_count = gradient.shape
    return (row_count, rank) if is_projected_from_the_right(gradient) else (rank, column_count)
