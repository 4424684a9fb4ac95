"""Replays one rank's training steps without ZeRO (stage 0), where it has all weights, gradients and states.

Sources, of 0.19.8: deepspeed/runtime/engine.py (`_do_optimizer_sanity_check`, `_configure_fp16_optimizer`,
`buffered_allreduce_fallback`), runtime/fp16/fused_optimizer.py (`FP16_Optimizer`), runtime/fp16/unfused_optimizer.py
(`FP16_UnfusedOptimizer`), which train in bfloat16 too.
"""

from __future__ import annotations

from ...device_memory.optimizers.step import OptimizedParameter
from ...simulator.meter import AllocationPlace
from ...simulator.tensor import FLOAT32, Storage, Tensor, count_storages_as, empty
from .partitions import weight_element_count
from .zero import ZeroRun

BUCKET_ELEMENTS = 500_000_000
"""Number of elements at which a bucket of gradients is reduced (`MEMORY_OPT_ALLREDUCE_SIZE`)."""


class ReplicatedRun(ZeroRun):
    """One rank's training steps in ZeRO stage 0.

    Weights in float32 are updated in place. Weights in 16 bits have float32 copies, one per parameter.
    """

    def prepare_training(self) -> None:
        """Allocates fp32 copies of 16-bit weights and the optimizer's states (`initialize_optimizer_states`)."""
        super().prepare_training()
        self.parameters: list[Tensor] = self.parameters_in_module_order()
        if self.dtype is FLOAT32:
            return
        gradients = [empty(self.meter, weight.shape, self.dtype) for weight in self.parameters]
        for trained_weight in self.updated_parameters:
            trained_weight.gradient = empty(self.meter, trained_weight.tensor.shape, FLOAT32)
        self.run_optimizer(self.updated_parameters)
        del gradients

    def backward(self, loss: Tensor) -> None:
        """Replays a backward pass; the last one of a step also reduces the gradients over ranks."""
        super().backward(loss)
        self.meter.place = AllocationPlace("backward")
        if self.is_last_microbatch:
            self.reduce_gradients()

    def reduce_gradients(self) -> None:
        """Reduces copies of the gradients in buckets (`allreduce_no_retain`)."""
        for weight in self.parameters:
            if weight.grad is None:  # `_get_gradients_for_reduction`
                weight.grad = empty(self.meter, weight.shape, self.dtype)
        bucket_sizes: list[int] = []
        for weight in self.parameters:
            bucket_sizes.append(weight_element_count(weight))
            if sum(bucket_sizes) > BUCKET_ELEMENTS:
                self.reduce_bucket(bucket_sizes)
                bucket_sizes = []
        self.reduce_bucket(bucket_sizes)

    def reduce_bucket(self, gradient_sizes: list[int]) -> None:
        """Copies gradients into one tensor and casts it to the communication format (`allreduce_bucket`)."""
        with count_storages_as(self.meter, "communication"):
            bucket_elements = sum(gradient_sizes)
            flat_bucket = Storage(self.meter, bucket_elements * self.dtype.bytes) if len(gradient_sizes) > 1 else None
            needs_cast = self.communication_dtype is not self.dtype and bucket_elements
            cast_buffer = Storage(self.meter, bucket_elements * self.communication_dtype.bytes) if needs_cast else None
        del flat_bucket, cast_buffer

    def check_overflow(self) -> None:
        """Allocates the fp32 sums of 16-bit gradients that detect overflow (`CheckOverflow._has_inf_or_nan`)."""
        for weight in self.parameters:
            if weight.grad is not None:
                float32_gradient = Storage(self.meter, weight_element_count(weight) * FLOAT32.bytes)
                del float32_gradient

    def update(self) -> None:
        """Replays the optimizer's step; for 16-bit weights, on fp32 copies of the gradients."""
        self.meter.place = AllocationPlace("step")
        if self.dtype is not FLOAT32:
            self.check_overflow()
        super().update()

    def host_terms(self) -> tuple[()]:
        """Returns no terms of host memory, since ZeRO stage 0 offloads nothing."""
        return ()


class FlatCopyRun(ReplicatedRun):
    """One rank's training steps in stage 0, with 16-bit weights and DeepSpeed's fused Adam (`FP16_Optimizer`).

    The weights are slices of one flat tensor, and the optimizer updates one flat float32 copy.
    """

    def prepare_training(self) -> None:
        """Allocates flat weights, their fp32 copy and the optimizer states."""
        self.parameters: list[Tensor] = self.parameters_in_module_order()
        element_count, element_bytes = sum(map(weight_element_count, self.parameters)), self.dtype.bytes
        with count_storages_as(self.meter, "weights"):
            cloned_tensors = [
                Storage(self.meter, weight_element_count(weight) * element_bytes) for weight in self.parameters
            ]
            flat_weights = Storage(self.meter, element_count * element_bytes)
        del cloned_tensors
        for weight in self.parameters:
            weight.storage = flat_weights
        cloned_weights = Storage(self.meter, element_count * element_bytes)
        with count_storages_as(self.meter, "optimizer"):
            float32_copy = empty(self.meter, (element_count,), FLOAT32)
        del cloned_weights
        self.updated_parameters = [OptimizedParameter(float32_copy)]
        with count_storages_as(self.meter, "gradients"):
            self.updated_parameters[0].gradient = empty(self.meter, (element_count,), FLOAT32)
        self.run_optimizer(self.updated_parameters)

    def update(self) -> None:
        """Replays the update: casts gradients to fp32, copies them into one tensor and runs the optimizer (`step`)."""
        self.meter.place = AllocationPlace("step")
        self.check_overflow()
        with count_storages_as(self.meter, "gradients"):
            fp32_gradients = [empty(self.meter, weight.shape, FLOAT32) for weight in self.parameters]
            self.updated_parameters[0].gradient = empty(self.meter, self.updated_parameters[0].tensor.shape, FLOAT32)
        del fp32_gradients
        for weight in self.parameters:
            weight.grad = None
        self.run_optimizer(self.updated_parameters)
