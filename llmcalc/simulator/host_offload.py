"""Activation offloading: saved tensors stay on the host between the forward and the backward pass.

Source: torchtune/training/_activation_offloading.py, `OffloadActivations`.
"""

from __future__ import annotations

from collections import deque

from .autograd import AutogradGraph
from .tensor import SavedTensor, Tensor

RECENT_TENSORS = 5
"""Number of the latest saved tensors of which moved ones also stay on the device until the backward pass."""

LEAST_MOVED_BYTES = 1024
"""Smallest size in bytes of a tensor that is moved to the host."""


class HostOffload:
    """Moves the tensors that an autograd graph saves for the backward pass to the host, except weights.

    offloaded_bytes: bytes of each tensor on the host.
    """

    def __init__(self, autograd_graph: AutogradGraph) -> None:
        self.graph = autograd_graph
        self.offloaded_bytes: list[int] = []
        self.device_copies: deque[Tensor | None] = deque(maxlen=RECENT_TENSORS)

    def pack(self, tensor: Tensor) -> SavedTensor:
        """Saves a tensor for the backward pass: a large one on the host, a small one on the device."""
        if tensor.storage.block.kind == "weights" or tensor.bytes < LEAST_MOVED_BYTES:
            self.device_copies.append(None)
            self.graph.meter.reclassify(tensor.storage.block, "activations")
            return SavedTensor(tensor.detached())
        self.device_copies.append(tensor.detached())
        self.offloaded_bytes.append(tensor.bytes)
        return _HostTensor(self, tensor)


class _HostTensor(SavedTensor):
    """A saved tensor on the host, which is copied back to the device on use."""

    __slots__ = ("layout", "offload")

    def __init__(self, offload: HostOffload, tensor: Tensor) -> None:
        self.offload = offload
        self.layout = tensor.shape, tensor.dtype, tensor.strides

    def unpack(self) -> Tensor:
        self.offload.device_copies.clear()
        return self.offload.graph.new_tensor(*self.layout)
