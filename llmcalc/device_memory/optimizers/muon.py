"""Muon of `torch.optim` (torch/optim/_muon.py of torch 2.13): one momentum buffer per weight matrix of the layers.

Jordan 2024. AdamW updates embeddings, output head, norms, biases and other vectors, as in the documentation of
torch.optim.Muon, and stacked experts: torch's Muon refuses tensors of other than two axes. Muon's own step is always a
loop; the implementation is that of AdamW.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...algebra import Number, add
from ...costs.trained_tensors import TrainedTensor, packed_bytes, total_elements
from ...workload.execution import OptimizerImplementation
from . import adamw
from .record import TORCH_WITNESS, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from ...simulator.tensor import Tensor
    from .step import OptimizedParameter, OptimizerStep

NEWTON_SCHULZ_ITERATIONS = 5
"""Number of Newton-Schulz iterations in a step."""


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of momentum for the matrices, and of AdamW's states for other tensors."""
    matrices = [trained_tensor for trained_tensor in tensors if trained_tensor.is_layer_matrix]
    other_tensors = [trained_tensor for trained_tensor in tensors if not trained_tensor.is_layer_matrix]
    return {"momentum_buffer": packed_bytes(total_elements(matrices), dtype), **adamw.state_bytes(other_tensors, dtype)}


def product_flops(tensors: Sequence[TrainedTensor]) -> Number:
    """Returns the FLOPs of the Newton-Schulz iterations, each of which has three matrix products."""
    total_flops: Number = 0
    for trained_tensor in tensors:
        if trained_tensor.is_layer_matrix:
            shorter_side, longer_side = sorted(trained_tensor.tensor.shape)
            gram_flops = 2 * shorter_side**2 * longer_side
            square_flops = 2 * shorter_side**3
            product_flops_of_update = 2 * shorter_side**2 * longer_side
            total_flops = add(
                total_flops,
                trained_tensor.copies
                * NEWTON_SCHULZ_ITERATIONS
                * (gram_flops + square_flops + product_flops_of_update),
            )
    return total_flops


def replay_step(optimizer_step: OptimizerStep) -> None:
    """Replays `Muon.step` with Nesterov momentum for layer matrices, then AdamW's step for other parameters."""
    _update_matrices(
        optimizer_step, [parameter for parameter in optimizer_step.updated_parameters if parameter.is_layer_matrix]
    )
    adamw.update_parameters(
        optimizer_step, [parameter for parameter in optimizer_step.updated_parameters if not parameter.is_layer_matrix]
    )


def _update_matrices(optimizer_step: OptimizerStep, trained_parameters: Sequence[OptimizedParameter]) -> None:
    for parameter in optimizer_step.iterate_parameters(trained_parameters):
        parameter.states = parameter.states or optimizer_step.allocate_states_like(parameter.grad)  # momentum_buffer
    for parameter in optimizer_step.iterate_parameters(trained_parameters):
        momentum_update = optimizer_step.aten.new_like(parameter.grad, parameter.states[0])
        momentum_update = _zeropower_via_newtonschulz(optimizer_step, momentum_update)
        optimizer_step.record_in_place_operation(parameter.tensor, momentum_update)


def _zeropower_via_newtonschulz(optimizer_step: OptimizerStep, grad: Tensor) -> Tensor:
    """Allocates the orthogonalized update in bf16; an update already in bf16 is reused in the first iteration."""
    from ...simulator.tensor import BFLOAT16

    aten = optimizer_step.aten
    ortho_grad = aten.to(grad, BFLOAT16)
    if grad.shape[0] > grad.shape[1]:
        ortho_grad = aten.transpose(ortho_grad, 0, 1)
    # divided by its norm, which is at least eps
    optimizer_step.record_in_place_operation(ortho_grad, aten.new_like(aten.new_tensor((), BFLOAT16)))
    for _ in range(NEWTON_SCHULZ_ITERATIONS):
        gram_matrix = aten.mm(ortho_grad, aten.transpose(ortho_grad, 0, 1))
        gram_update = aten.addmm(gram_matrix, gram_matrix, gram_matrix)
        ortho_grad = aten.addmm(ortho_grad, gram_update, ortho_grad)
    if grad.shape[0] > grad.shape[1]:
        ortho_grad = aten.transpose(ortho_grad, 0, 1)
    return ortho_grad


def build_torch_optimizers(
    parameters: Sequence[tuple[Any, bool]], implementation: OptimizerImplementation, has_momentum: bool
) -> Iterator[Any]:
    """Builds torch's optimizers. parameters: pairs of a parameter and whether it is the weight matrix of a layer."""
    import torch

    matrices = [parameter for parameter, is_matrix in parameters if is_matrix]
    other_parameters = [(parameter, False) for parameter, is_matrix in parameters if not is_matrix]
    if matrices:
        yield torch.optim.Muon(matrices)
    if other_parameters:
        yield from adamw.build_torch_optimizers(other_parameters, implementation, has_momentum)


OPTIMIZER = Optimizer(
    name="muon",
    implementations=("foreach", "fused", "loop"),
    state_bytes=state_bytes,
    run_step=replay_step,
    build_torch_optimizers=build_torch_optimizers,
    note="momentum for the weight matrices of linear layers in the layers; AdamW for embeddings, output head, norms, "
    "biases and other vectors, and for stacked experts",
    separates_layer_matrices=True,
    states_per_element=lambda flat: (1, 1),
    product_flops=product_flops,
    witness=TORCH_WITNESS,
)
