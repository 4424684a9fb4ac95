"""Replays one rank's training steps under ZeRO stage 1, with bf16 weights and gradients summed in fp32.

Every rank has all weights, and the sums of all gradients in float32; it updates a float32 copy of its own partition.
Source: deepspeed/runtime/bf16_optimizer.py of 0.19.8 (`BF16_Optimizer`).
"""

from __future__ import annotations

from ...device_memory.optimizers.step import OptimizedParameter
from ...simulator.meter import AllocationPlace
from ...simulator.tensor import FLOAT32, Storage, Tensor, count_storages_as, empty
from .partitions import padded_flat_size, weight_element_count
from .replicated import ReplicatedRun


class Bf16OptimizerRun(ReplicatedRun):
    """One rank's training steps under DeepSpeed's `BF16_Optimizer`.

    flat_gradient_sums: the gradients of all micro-batches, in one flat tensor of the accumulation format.
    partition_elements: elements of the rank's partition.
    """

    flat_gradient_sums: Storage | None = None
    partition_elements: int = 0

    def prepare_training(self) -> None:
        """Allocates flat weights, the rank's fp32 partition and gradient sums (`_setup_for_real_optimizer`)."""
        self.parameters: list[Tensor] = self.parameters_in_module_order()
        element_count = padded_flat_size(sum(map(weight_element_count, self.parameters)), self.rank_count)
        element_bytes = self.dtype.bytes
        self.partition_elements = element_count // self.rank_count
        with count_storages_as(self.meter, "weights"):
            flat_weights = Storage(self.meter, element_count * element_bytes)
        for weight in self.parameters:
            weight.storage = flat_weights
        cloned_partition = Storage(self.meter, self.partition_elements * element_bytes)
        with count_storages_as(self.meter, "optimizer"):
            self.updated_parameters = [OptimizedParameter(empty(self.meter, (self.partition_elements,), FLOAT32))]
        del cloned_partition
        with count_storages_as(self.meter, "gradients"):
            self.flat_gradient_sums = Storage(self.meter, element_count * self.accumulation_dtype.bytes)

    def backward(self, loss: Tensor) -> None:
        """Replays the backward pass, adds gradients to fp32 sums (`update_hp_grads`) and reduces these sums."""
        super(ReplicatedRun, self).backward(loss)
        self.meter.place = AllocationPlace("backward")
        for weight in self.parameters:
            if weight.grad is not None and self.accumulation_dtype is not self.dtype:
                cast_gradient = Storage(self.meter, weight_element_count(weight) * self.accumulation_dtype.bytes)
                del cast_gradient
        if self.is_last_microbatch and self.communication_dtype is not self.accumulation_dtype:
            with count_storages_as(self.meter, "communication"):  # the sums are one tensor already, which is cast
                buffer = Storage(self.meter, self.partition_elements * self.rank_count * self.communication_dtype.bytes)
            del buffer

    def update(self) -> None:
        """Replays the optimizer's step on this rank's fp32 partition (`step`)."""
        self.meter.place = AllocationPlace("step")
        assert self.flat_gradient_sums is not None
        self.updated_parameters[0].gradient = Tensor((self.partition_elements,), FLOAT32, self.flat_gradient_sums)
        self.run_optimizer(self.updated_parameters)
