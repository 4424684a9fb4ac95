"""Adafactor of transformers, which its Trainer runs (transformers/optimization.py of 5.23; `--optim adafactor`).

It differs from torch's in its step: gradients and parameters in 16 bits are copied to fp32, and an update has the shape
of the whole tensor beside them. The Trainer sets neither relative steps nor a scale by the parameter. A tensor keeps
its root mean square on the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...costs.trained_tensors import TrainedTensor, tensor_count
from ...workload.execution import OptimizerImplementation
from . import adafactor
from .record import TORCH_WITNESS, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from ...simulator.tensor import Tensor
    from .step import OptimizerStep


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of row and column means (of the second moment for vectors), and of root mean squares."""
    torch_states = {
        name: byte_count for name, byte_count in adafactor.state_bytes(tensors, "float32").items() if name != "step"
    }
    return torch_states | {"RMS": 4 * tensor_count(tensors)}


def replay_step(optimizer_step: OptimizerStep) -> None:
    """Replays `Adafactor.step`; a parameter's temporary tensors live until the next parameter's replace them."""
    from ...simulator.tensor import FLOAT32

    aten, parameter_update = optimizer_step.aten, None
    for parameter in optimizer_step.iterate_parameters(optimizer_step.updated_parameters):
        grad = None
        grad = aten.to(parameter.grad, FLOAT32)
        if not parameter.states:
            with optimizer_step.allocating_states():
                parameter.states = _allocate_states(optimizer_step, grad)
        p_data_fp32 = None
        p_data_fp32 = aten.to(parameter.tensor, FLOAT32)
        mean_count = 2 if len(grad.shape) > 1 else 1
        with optimizer_step.allocating_states():
            parameter.states[mean_count:] = [_root_mean_square(optimizer_step)]
        squared_gradient = aten.new_like(grad)
        parameter_update = aten.new_like(squared_gradient)
        del squared_gradient
        if mean_count == 2:
            row_state, column_state = parameter.states[:mean_count]
            row_mean = aten.new_like(row_state)
            optimizer_step.record_in_place_operation(row_state, row_mean)
            del row_mean
            column_mean = aten.new_like(column_state)
            optimizer_step.record_in_place_operation(column_state, column_mean)
            del column_mean
            parameter_update = _second_moment_estimate(optimizer_step, grad, row_state, column_state)
        else:
            parameter_update = aten.new_like(parameter.states[0])
        optimizer_step.record_in_place_operation(parameter_update, grad)
        _root_mean_square(optimizer_step)
        negated_update = aten.new_like(parameter_update)
        optimizer_step.record_in_place_operation(p_data_fp32, negated_update)
        del negated_update


def _allocate_states(optimizer_step: OptimizerStep, grad: Tensor) -> list[Tensor]:
    """Allocates a parameter's row and column means, or the second moment of a vector, anew in each step."""
    shapes = [(*grad.shape[:-1],), (*grad.shape[:-2], grad.shape[-1])] if len(grad.shape) > 1 else [grad.shape]
    return [optimizer_step.aten.new_tensor(shape, grad.dtype) for shape in shapes]


def _root_mean_square(optimizer_step: OptimizerStep) -> Tensor:
    """Allocates a norm, and the norm divided by a number, as a root mean square is computed (`_rms`)."""
    from ...simulator.tensor import FLOAT32

    norm = optimizer_step.aten.new_tensor((), FLOAT32)
    return optimizer_step.aten.new_like(norm)


def _second_moment_estimate(
    optimizer_step: OptimizerStep, grad: Tensor, row_state: Tensor, column_state: Tensor
) -> Tensor:
    """Allocates the estimated second moment: a factor per row times a factor per column (`_approx_sq_grad`)."""
    aten = optimizer_step.aten
    row_mean = aten.new_tensor((*row_state.shape[:-1], 1), row_state.dtype)
    row_factor = aten.new_like(row_state)
    del row_mean
    column_factor = aten.new_like(column_state)
    estimated_squares = aten.new_like(grad)
    optimizer_step.record_in_place_operation(estimated_squares, row_factor, column_factor)
    return estimated_squares


def build_torch_optimizers(
    parameters: Sequence[tuple[Any, bool]], implementation: OptimizerImplementation, has_momentum: bool
) -> Iterator[Any]:
    """Builds Adafactor as the Trainer does. parameters: pairs (parameter, whether it is a matrix)."""
    from transformers.optimization import Adafactor

    yield Adafactor([tensor for tensor, _ in parameters], lr=1e-3, scale_parameter=False, relative_step=False)


OPTIMIZER = Optimizer(
    name="adafactor-transformers",
    implementations=("loop",),
    state_bytes=state_bytes,
    run_step=replay_step,
    build_torch_optimizers=build_torch_optimizers,
    note="a matrix has one mean per row and one per column, a vector its whole second moment",
    uncounted_work="means of rows and columns",
    state_format="float32",
    state_format_note="its states are fp32",
    witness=TORCH_WITNESS,
)
