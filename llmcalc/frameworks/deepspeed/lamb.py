"""Replays one rank's training steps with Lamb or 1-bit Lamb, which keep an fp32 master copy of each parameter.

Both have Adam's states of these copies. Lamb's kernel reads the 16-bit gradients, whose norm is that of flat copies.
1-bit Lamb keeps a second moment of its own for the compressed steps, and the errors of the compression.

Sources, of deepspeed 0.19.8: runtime/fp16/unfused_optimizer.py (`step_fused_lamb`), ops/lamb/fused_lamb.py,
runtime/fp16/onebit/lamb.py (`step`), runtime/utils.py (`get_weight_norm`).
"""

from __future__ import annotations

from ...algebra import ceil_div
from ...simulator.meter import AllocationPlace
from ...simulator.tensor import FLOAT32, Storage, count_storages_as, empty
from .partitions import weight_element_count
from .replicated import ReplicatedRun


class LambRun(ReplicatedRun):
    """One rank's training steps with DeepSpeed's fused Lamb."""

    def update(self) -> None:
        """Replays the update: flattens gradients, computes their norm in fp32, and updates the fp32 master weights."""
        self.meter.place = AllocationPlace("step")
        element_count = sum(map(weight_element_count, self.parameters))
        with count_storages_as(self.meter, "gradients"):
            for weight in self.parameters:
                if weight.grad is None:
                    weight.grad = empty(self.meter, weight.shape, self.dtype)
            flat_gradient = Storage(self.meter, element_count * self.dtype.bytes)
            norm_storage = Storage(self.meter, element_count * self.dtype.bytes)
            float32_gradient = Storage(self.meter, element_count * FLOAT32.bytes)
        del flat_gradient, norm_storage, float32_gradient
        for weight in self.parameters:
            weight.grad = None


class OneBitLambRun(ReplicatedRun):
    """One rank's training steps with 1-bit Lamb, once messages are compressed.

    states: the fresh second moment, the rank's errors, and the errors of the part that it sums.
    """

    states: list[Storage]

    def prepare_training(self) -> None:
        """Allocates fp32 master weights, Adam's states, a fresh second moment, and the compression errors."""
        super().prepare_training()
        element_count = sum(map(weight_element_count, self.parameters))
        with count_storages_as(self.meter, "optimizer"):
            self.states = [
                Storage(self.meter, tensor_elements * FLOAT32.bytes)
                for tensor_elements in (element_count, element_count, ceil_div(element_count, self.rank_count))
            ]

    def update(self) -> None:
        """Replays the update: copies the momentum, which compression changes, and runs the optimizer in fp32."""
        self.meter.place = AllocationPlace("step")
        with count_storages_as(self.meter, "optimizer"):
            last_momentum = [
                Storage(self.meter, weight_element_count(weight) * FLOAT32.bytes) for weight in self.parameters
            ]
        super().update()
        del last_momentum
