"""SGD of `torch.optim` (torch/optim/sgd.py of torch 2.13): one buffer per element if momentum is used."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...costs.trained_tensors import TrainedTensor, packed_bytes, total_elements
from ...workload.execution import OptimizerImplementation
from .record import TORCH_WITNESS, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from .step import OptimizerStep


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """Returns the bytes of the momentum buffers."""
    return {"momentum_buffer": packed_bytes(total_elements(tensors), dtype)}


def replay_step(optimizer_step: OptimizerStep) -> None:
    """Replays `SGD.step` without weight decay, which only copies the first gradients to the momentum buffers.

    Only the order in which the buffers are made depends on the implementation: by groups, or tensor after tensor.
    """
    if optimizer_step.has_momentum:
        is_foreach, updated_parameters = optimizer_step.implementation == "foreach", optimizer_step.updated_parameters
        for tensor_group in optimizer_step.group_by_dtype(updated_parameters) if is_foreach else [updated_parameters]:
            for parameter in optimizer_step.iterate_parameters(tensor_group):
                parameter.states = parameter.states or optimizer_step.allocate_states_like(
                    parameter.grad
                )  # momentum_buffer


def build_torch_optimizers(
    parameters: Sequence[tuple[Any, bool]], implementation: OptimizerImplementation, has_momentum: bool
) -> Iterator[Any]:
    """Builds torch's optimizer. parameters: pairs of a parameter and whether it is the weight matrix of a layer."""
    import torch

    yield torch.optim.SGD(
        [parameter for parameter, _ in parameters],
        momentum=0.9 if has_momentum else 0.0,
        foreach=implementation == "foreach",
        fused=implementation == "fused",
    )


OPTIMIZER = Optimizer(
    name="sgd",
    implementations=("foreach", "fused", "loop"),
    state_bytes=state_bytes,
    run_step=replay_step,
    build_torch_optimizers=build_torch_optimizers,
    has_momentum=True,
    state_format_note="without --momentum it keeps no state",
    supports_element_shards=True,
    witness=TORCH_WITNESS,
)
