"""Records an autograd.Function as one node, and states device properties that determine workspace sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...algebra import Number
from ...frozen import frozen
from ..aten import Aten
from ..autograd import record
from ..tensor import NeedsInputGrad, OptionalGradient, Tensor

OptionalTensor = Tensor | None


@frozen
class Accelerator:
    """The properties of a device that determine the size of a kernel's workspaces.

    multiprocessors: the number of streaming multiprocessors.
    shared_memory: the bytes of shared memory that a block may use.
    """

    multiprocessors: int
    shared_memory: int


H100 = Accelerator(132, 232448)
"""NVIDIA H100 SXM: 132 multiprocessors, 227 KiB per block (CUDA C Programming Guide, technical specifications)."""


def record_function(
    aten: Aten,
    operation_name: str,
    optional_inputs: Sequence[OptionalTensor],
    output: Tensor,
    backward: Callable[..., Sequence[OptionalGradient]],
    saved_tensors: Sequence[OptionalTensor],
) -> Tensor:
    """Records an autograd.Function whose forward pass has computed `output` before this call.

    optional_inputs: the arguments that may be tensors, or None.
    saved_tensors: arguments of `ctx.save_for_backward`, or None.
    backward: backward(gradient, *saves) → a gradient per argument. It returns one for each, wanted or not, as the
        libraries do, and may not capture a tensor.
    """
    tensor_indices = [
        tensor_index for tensor_index, optional_tensor in enumerate(optional_inputs) if optional_tensor is not None
    ]
    saved_flags = [optional_tensor is not None for optional_tensor in saved_tensors]

    def node_backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
        saved_iterator = iter(saved_tensors)
        input_gradients = backward(
            output_gradient, *[next(saved_iterator) if is_saved else None for is_saved in saved_flags]
        )
        return [input_gradients[tensor_index] for tensor_index in tensor_indices]

    inputs = [optional_tensor for optional_tensor in optional_inputs if optional_tensor is not None]
    return record(
        aten.graph,
        operation_name,
        inputs,
        output,
        node_backward,
        *[optional_tensor for optional_tensor in saved_tensors if optional_tensor is not None],
    )


def next_power_of_two(lower_bound: Number) -> int:
    """Returns the smallest power of two that is at least `lower_bound` (triton.next_power_of_2)."""
    return 1 << max(int(lower_bound) - 1, 0).bit_length()
