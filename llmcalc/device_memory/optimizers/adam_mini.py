"""Adam-mini (adam_mini/adam_mini.py of version 1.1.1; Zhang 2024, arXiv:2406.16793).

Each tensor has a whole first moment. The second moment of a matrix is one mean per row, that of a vector is whole, as
Adam-mini has it for biases. For queries and keys Adam-mini has one mean per head, and for norms a single one: both are
counted as the larger rule says, as shapes alone do not tell them apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...algebra import Number
from ...costs.trained_tensors import TrainedTensor, packed_bytes, sum_over_tensors, total_elements
from ...evidence import source_code_witness
from ...ops import ParamTensor
from .record import LIBRARY_COMPARISON_TEST, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from .step import OptimizerStep


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of the first moment, and of the means that Adam-mini stores instead of the second moment."""
    return {
        "m": packed_bytes(total_elements(tensors), dtype),
        "vmean": packed_bytes(sum_over_tensors(tensors, _mean_count), dtype),
    }


def _mean_count(tensor: ParamTensor) -> Number:
    """Returns the number of means: elements divided by the second axis's length; one per element of a vector."""
    return ParamTensor((tensor.shape[0], *tensor.shape[2:]), tensor.role).size if len(tensor.shape) > 1 else tensor.size


def replay_step(optimizer_step: OptimizerStep) -> None:
    """Replays `Adam_mini.step`; temporary tensors live until the next parameter's replace them."""
    aten = optimizer_step.aten
    momentum_over_denominator = parameter_update = None
    for parameter in optimizer_step.iterate_parameters(optimizer_step.updated_parameters):
        grad, dtype = parameter.grad, optimizer_step.state_format or parameter.grad.dtype
        is_vector = len(grad.shape) < 2
        if not parameter.states:
            mean_shape = grad.shape if is_vector else (grad.shape[0], 1, *grad.shape[2:])
            with optimizer_step.allocating_states():
                parameter.states += [aten.new_like(grad, dtype=dtype), aten.new_tensor(mean_shape, dtype)]  # m, vmean
        if is_vector:
            momentum_over_denominator = aten.new_like(aten.new_like(parameter.states[1]))
            optimizer_step.record_in_place_operation(parameter.tensor, momentum_over_denominator)
            continue
        squared_gradient = aten.new_like(grad)
        means_of_squares = aten.new_tensor(parameter.states[1].shape, grad.dtype)
        del squared_gradient
        momentum_over_denominator = aten.new_like(aten.new_like(parameter.states[1]))
        step_sizes = aten.new_like(momentum_over_denominator)
        parameter_update = aten.new_like(parameter.states[0])
        optimizer_step.record_in_place_operation(
            parameter.tensor, aten.new_like(parameter_update), means_of_squares, step_sizes
        )


OPTIMIZER = Optimizer(
    name="adam-mini",
    implementations=("loop",),
    state_bytes=state_bytes,
    run_step=replay_step,
    reason_not_in_torch="adam_mini is not a part of torch",
    note="a matrix has one mean of the second moment per row, a vector its whole second moment; Adam-mini itself has "
    "fewer for queries, keys and norms",
    separates_layer_matrices=True,
    witness=source_code_witness(
        "adam_mini/adam_mini.py; at most, for queries, keys and norms", LIBRARY_COMPARISON_TEST
    ),
)
