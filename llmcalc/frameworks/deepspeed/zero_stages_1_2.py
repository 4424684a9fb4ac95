"""Replays one rank's training steps under ZeRO stages 1 and 2.

Every rank has all parameters, as slices of one flat tensor, and updates a float32 copy of its own partition. Stage 1
reduces gradients over ranks after the last backward pass of a step. Stage 2 reduces them in every backward pass, and
keeps those of its own partition.

Each method allocates and frees the tensors of the method that it names, in the same order. Source:
deepspeed/runtime/zero/stage_1_and_2.py of 0.19.8 (`DeepSpeedZeroOptimizer`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from ...device_memory.device_memory import MemoryTerm
from ...device_memory.host_memory import pinned_bytes
from ...device_memory.optimizers.step import OptimizedParameter
from ...simulator.meter import AllocationPlace, Meter
from ...simulator.tensor import FLOAT32, Dtype, Storage, Tensor, count_storages_as, empty
from .partitions import (
    PartitionPiece,
    aligned_offsets,
    padded_flat_size,
    partition_pieces,
    round_robin_order,
    weight_element_count,
)
from .zero import FLOAT64_BYTES, ZeroRun, ZeroSetup

SOURCE_FILE = "deepspeed/runtime/zero/stage_1_and_2.py"
"""DeepSpeed's source file that states what is in host memory."""


@dataclass
class GradientBucket:
    """The gradients that the next reduction over ranks takes together (`IPGBucket`).

    buffers: buffers for their copies; two if reductions overlap the backward pass.
    buffer_index: the buffer that is being filled.
    parameters: the parameters of the gradients.
    element_count: elements of all gradients.
    """

    buffers: list[Storage] = field(default_factory=list)
    buffer_index: int = 0
    parameters: list[Tensor] = field(default_factory=list)
    element_count: int = 0

    def clear(self) -> None:
        """Empties the gradient bucket."""
        self.parameters, self.element_count = [], 0


class PartitionedRun(ZeroRun):
    """One rank's training steps under ZeRO stages 1 and 2.

    rank: the rank of the partition.
    partition_elements: elements of a partition.
    pieces_by_weight: id of a parameter → its pieces on all ranks.
    rank_pieces: id of a parameter → its piece on this rank.
    rank_parameters: the parameters with a piece on this rank.
    bucket: the gradients that are reduced next.
    oversized_gradient: a gradient that is larger than a bucket.
    has_buffers: whether the bucket has buffers.
    weights_with_pending_frees: parameters whose gradients the next reduction frees.
    accumulated_gradients: id of a parameter → its gradient over micro-batches, in a format of its own.
    partition_buffer: the buffer of the rank's gradients.
    accumulated_partition: the rank's gradients of all micro-batches so far.
    averaged_gradients: the rank's gradients after the last micro-batch.
    compact_partition: the gradients of the rank's partition, accumulated in float32.
    host_buffer: a buffer for gradients on their way to the host.
    """

    has_rank_dependent_storages: ClassVar[bool] = True

    def __init__(self, zero_setup: ZeroSetup, memory_meter: Meter | None = None) -> None:
        super().__init__(zero_setup, memory_meter)
        self.bucket: GradientBucket = GradientBucket()
        self.oversized_gradient: Tensor | None = None
        self.has_buffers: bool = False
        self.accumulated_gradients: dict[int, Tensor] = {}
        self.weights_with_pending_frees: list[Tensor] = []
        self.partition_buffer: Storage | None = None
        self.accumulated_partition: list[Tensor] | None = None
        self.averaged_gradients: list[Tensor] | None = None
        self.compact_partition: Storage | None = None
        self.host_buffer: Storage | None = None

    # --- set-up -----------------------------------------------------------------------------------------------------

    def prepare_training(self) -> None:
        """Allocates the flat tensor of all parameters, and the rank's fp32 partition (`__init__`)."""
        self.parameters: list[Tensor] = self.parameters_in_module_order()
        settings, rank_count = self.settings, self.rank_count
        ordered_parameters = (
            round_robin_order(self.parameters, rank_count) if settings.round_robin_gradients else self.parameters
        )
        element_bytes, element_counts = (
            self.dtype.bytes,
            [weight_element_count(weight) for weight in ordered_parameters],
        )
        start_offsets, flat_elements = aligned_offsets(element_counts, element_bytes, settings.parameter_alignment)
        element_count = padded_flat_size(flat_elements, rank_count)
        self.partition_elements: int = element_count // rank_count
        self.pieces_by_weight: dict[int, list[PartitionPiece]] = {
            id(weight): partition_pieces(start_offset, parameter_elements, self.partition_elements)
            for weight, start_offset, parameter_elements in zip(
                ordered_parameters, start_offsets, element_counts, strict=True
            )
        }
        self.rank_pieces: dict[int, PartitionPiece] = {
            weight_id: piece
            for weight_id, weight_pieces in self.pieces_by_weight.items()
            for piece in weight_pieces
            if piece.rank == self.rank
        }
        self.rank_parameters: list[Tensor] = [weight for weight in ordered_parameters if id(weight) in self.rank_pieces]
        with count_storages_as(self.meter, "weights"):
            flat_parameters = Storage(self.meter, element_count * element_bytes)
            for weight in ordered_parameters:
                weight.storage = flat_parameters
        self.largest_parameter: int = max(element_counts)
        cloned_partition = Storage(self.meter, self.partition_elements * element_bytes)
        if self.has_offloaded_states:
            del cloned_partition
            with count_storages_as(self.meter, "communication"):  # temp_grad_buffer_for_gpu_offload
                self.host_buffer = Storage(self.meter, self.largest_parameter * element_bytes)
            self.updated_parameters = []
            return
        with count_storages_as(self.meter, "optimizer"):
            fp32_partition = empty(self.meter, (self.partition_elements,), FLOAT32)
        del cloned_partition
        self.updated_parameters = [OptimizedParameter(fp32_partition)]
        single_grad_partition = Storage(
            self.meter, self.partition_elements * FLOAT32.bytes
        )  # initialize_optimizer_states
        del single_grad_partition

    # --- gradients --------------------------------------------------------------------------------------------------

    @property
    def has_offloaded_states(self) -> bool:
        """Whether optimizer states are offloaded to the host, to which gradients are then copied."""
        return self.settings.offload_optimizer != "none"

    def host_terms(self) -> tuple[MemoryTerm, ...]:
        """Returns the host memory of partition, gradients, optimizer states, and ZeRO-HostOffload's buffers.

        Gradients of several micro-batches are accumulated for whole parameters (`buffer_to_accumulate_to_in_cpu`).
        """
        if not self.has_offloaded_states:
            return ()
        partition_elements, element_bytes = self.partition_elements, self.dtype.bytes
        round_host_bytes = pinned_bytes if self.settings.offload_optimizer_pin_memory else int
        buffer_sizes = [
            partition_elements * element_bytes,
            self.largest_parameter * element_bytes,
        ]  # param_buffer_of_bit16, temp_grad_buffer
        if self.training_config.microbatches > 1:
            buffer_sizes += [weight_element_count(weight) * element_bytes for weight in self.rank_parameters]
        return (
            MemoryTerm(
                "fp32 weights and gradients",
                2 * round_host_bytes(partition_elements * FLOAT32.bytes),
                "source",
                SOURCE_FILE,
            ),
            MemoryTerm("optimizer states", self.host_state_bytes(partition_elements), "source", SOURCE_FILE),
            MemoryTerm("buffers", sum(map(round_host_bytes, buffer_sizes)), "source", SOURCE_FILE),
        )

    @property
    def has_contiguous_buffer(self) -> bool:
        """Whether gradients are copied into the bucket's contiguous buffer."""
        return self.settings.contiguous_gradients or self.has_offloaded_states

    @property
    def has_separate_accumulation(self) -> bool:
        """Whether ranks accumulate all gradients in another number format than the weights'."""
        return self.accumulation_dtype is not self.dtype and self.settings.stage == 1

    @property
    def has_accumulated_partition(self) -> bool:
        """Whether each rank accumulates its gradient partition in float32 (`_use_compact_grad_partition_buffer`)."""
        return self.accumulation_dtype is FLOAT32 and self.accumulation_dtype is not self.dtype

    @property
    def bucket_dtype(self) -> Dtype:
        """The number format of the bucket's buffer (`_gradient_reduction_buffer_dtype`)."""
        return self.accumulation_dtype if self.has_separate_accumulation else self.dtype

    @property
    def gradient_complete_hook(self) -> Callable[[Tensor], None]:
        """The hook that runs once a parameter's gradient is complete."""
        return self.process_gradients

    def process_gradients(self, weight: Tensor) -> None:
        """Accumulates a complete gradient, or adds it to the bucket that is reduced over ranks."""
        if id(weight) not in self.pieces_by_weight:  # an input of a part that runs again
            return
        self.setup_buckets()
        if self.has_separate_accumulation:
            self._fill_param_grad_accum_attribute(weight)
        if self.settings.stage == 2 or (self.settings.has_overlapped_reductions and self.is_last_microbatch):
            self.reduce_independent(weight)

    def setup_buckets(self) -> None:
        """Allocates the buffers of the gradient buckets."""
        if self.has_buffers:
            return
        if self.has_contiguous_buffer:
            self.bucket.buffers, self.bucket.buffer_index = [], 0
            with count_storages_as(self.meter, "communication"):
                for _ in range(2 if self.settings.has_overlapped_reductions else 1):
                    self.bucket.buffers.append(Storage(self.meter, self.bucket_elements * self.bucket_dtype.bytes))
        self.has_buffers = True

    def _fill_param_grad_accum_attribute(self, weight: Tensor) -> None:
        """Adds a parameter's new gradient to its accumulated gradient."""
        if id(weight) not in self.accumulated_gradients:
            with count_storages_as(self.meter, "gradients"):
                self.accumulated_gradients[id(weight)] = empty(self.meter, weight.shape, self.accumulation_dtype)
        else:
            accumulated_gradient = empty(self.meter, weight.shape, self.accumulation_dtype)
            del accumulated_gradient
        weight.grad = None

    def gradient(self, weight: Tensor) -> Tensor | None:
        """Returns a parameter's gradient that is to be reduced over ranks (`get_param_gradient_attribute`)."""
        return self.accumulated_gradients.get(id(weight)) if self.has_separate_accumulation else weight.grad

    def _store_gradient(self, weight: Tensor, gradient: Tensor | None) -> None:
        """Sets the accumulated gradient of a parameter; None frees the gradient."""
        if not self.has_separate_accumulation:
            weight.grad = gradient
        elif gradient is None:
            self.accumulated_gradients.pop(id(weight), None)
        else:
            self.accumulated_gradients[id(weight)] = gradient

    def reduce_independent(self, weight: Tensor) -> None:
        """Adds a gradient to the bucket or to a new one (`reduce_independent_p_g_buckets_and_remove_grads`)."""
        bucket, settings, element_count = self.bucket, self.settings, weight_element_count(weight)
        if bucket.element_count + element_count > self.bucket_elements:
            self.reduce_ipg_grads()
            if self.has_contiguous_buffer and settings.has_overlapped_reductions:
                bucket.buffer_index = 1 - bucket.buffer_index
        if self.has_contiguous_buffer:
            if element_count > self.bucket_elements:
                self.oversized_gradient = weight
            else:
                self._store_gradient(
                    weight, Tensor(weight.shape, self.bucket_dtype, bucket.buffers[bucket.buffer_index])
                )
        bucket.element_count += element_count
        bucket.parameters.append(weight)

    def reduce_ipg_grads(self) -> None:
        """Reduces the bucket's gradients, and frees those that are in other ranks' partitions."""
        grad_bucket, settings = self.bucket, self.settings
        if not grad_bucket.parameters:
            return
        with self.reduction_stream():
            if self.has_contiguous_buffer:
                self.average_tensor()
                self.oversized_gradient = None
            else:
                self._clear_previous_reduced_grads()
                rank_pieces = [
                    self.rank_pieces[id(weight)] for weight in grad_bucket.parameters if id(weight) in self.rank_pieces
                ]
                if rank_pieces and self.has_accumulated_partition and self.compact_partition is None:
                    self._build_compact_grad_partition_buffer()
                self._allreduce(
                    [PartitionPiece(-1, weight_element_count(weight)) for weight in grad_bucket.parameters], rank_pieces
                )
            for weight in grad_bucket.parameters:
                belongs_to_rank = id(weight) in self.rank_pieces
                if settings.stage == 2 and not belongs_to_rank:
                    if settings.has_overlapped_reductions and not self.has_contiguous_buffer:
                        self.weights_with_pending_frees.append(weight)
                    else:
                        self._store_gradient(weight, None)
                elif self.has_contiguous_buffer and belongs_to_rank:
                    self.copy_grads_in_partition(weight)
        grad_bucket.clear()

    def _clear_previous_reduced_grads(self) -> None:
        """Frees the gradients in the bucket that was reduced before."""
        for weight in self.weights_with_pending_frees:
            self._store_gradient(weight, None)
        self.weights_with_pending_frees = []

    def average_tensor(self) -> None:
        """Reduces the bucket's buffer, or one oversized gradient, in pieces to the ranks that own them."""
        settings, owner_rank = self.settings, self.rank
        pieces_to_reduce: list[PartitionPiece] = []
        for weight in self.bucket.parameters:
            for weight_piece in self.pieces_by_weight[id(weight)]:
                is_accumulated = self.has_accumulated_partition and weight_piece.rank == owner_rank
                if is_accumulated and self.compact_partition is None:
                    self._build_compact_grad_partition_buffer()
                if (
                    pieces_to_reduce
                    and not is_accumulated
                    and settings.reduce_scatter
                    and pieces_to_reduce[-1].rank == weight_piece.rank
                ):
                    pieces_to_reduce[-1] = pieces_to_reduce[-1]._replace(
                        element_count=pieces_to_reduce[-1].element_count + weight_piece.element_count
                    )
                else:
                    pieces_to_reduce.append(weight_piece)
        if not settings.reduce_scatter:
            whole_bucket = PartitionPiece(-1, self.bucket.element_count)
            self._allreduce(
                [whole_bucket], [queued_piece for queued_piece in pieces_to_reduce if queued_piece.rank == owner_rank]
            )
        elif settings.use_multi_rank_bucket_allreduce:
            self._reduce_in_batches(pieces_to_reduce)
        else:
            for rank in dict.fromkeys(weight_piece.rank for weight_piece in pieces_to_reduce):
                self._reduce_in_batches(
                    [weight_piece for weight_piece in pieces_to_reduce if weight_piece.rank == rank]
                )

    def _reduce_in_batches(self, pieces_to_reduce: Sequence[PartitionPiece]) -> None:
        """Reduces pieces of gradients in batches of bucket size (`allreduce_and_scatter`, `allreduce_no_retain`)."""
        reduction_batch: list[PartitionPiece] = []
        for weight_piece in pieces_to_reduce:
            reduction_batch.append(weight_piece)
            if sum(queued_piece.element_count for queued_piece in reduction_batch) > self.bucket_elements:
                self._allreduce(reduction_batch)
                reduction_batch = []
        if reduction_batch:
            self._allreduce(reduction_batch)

    def _allreduce(
        self, reduced_pieces: Sequence[PartitionPiece], accumulated_pieces: Sequence[PartitionPiece] | None = None
    ) -> None:
        """Concatenates tensors, casts them to the communication format and reduces them (`allreduce_bucket`).

        accumulated_pieces: pieces that this rank accumulates; by default its own pieces among `reduced_pieces`.
        """
        element_count = sum(weight_piece.element_count for weight_piece in reduced_pieces)
        flat_bucket = Storage(self.meter, element_count * self.bucket_dtype.bytes) if len(reduced_pieces) > 1 else None
        message_buffer = None
        if self.communication_dtype is not self.bucket_dtype:
            message_buffer = Storage(self.meter, element_count * self.communication_dtype.bytes)
        if self.has_accumulated_partition and self.communication_dtype is not FLOAT32:
            for weight_piece in reduced_pieces if accumulated_pieces is None else accumulated_pieces:
                if weight_piece.rank == self.rank:
                    fp32_buffer = Storage(self.meter, weight_piece.element_count * FLOAT32.bytes)
                    del fp32_buffer
        del flat_bucket, message_buffer

    def _build_compact_grad_partition_buffer(self) -> None:
        """Allocates the fp32 buffer for the gradients of the rank's partition."""
        with count_storages_as(self.meter, "gradients"):
            self.compact_partition = Storage(self.meter, self.partition_elements * FLOAT32.bytes)

    def copy_grads_in_partition(self, weight: Tensor) -> None:
        """Moves gradients of the rank's partition from the bucket's buffer to the partition's buffer or the host."""
        if self.has_offloaded_states:
            self._copy_to_host(weight)
            return
        if self.has_accumulated_partition:
            if self.has_separate_accumulation:
                self._store_gradient(weight, None)
            return
        if self.partition_buffer is None:
            element_count = sum(weight_element_count(parameter) for parameter in self.rank_parameters)
            with count_storages_as(self.meter, "gradients"):
                self.partition_buffer = Storage(self.meter, element_count * self.dtype.bytes)
        self._store_gradient(weight, Tensor(weight.shape, self.dtype, self.partition_buffer))

    def _copy_to_host(self, weight: Tensor) -> None:
        """Allocates the temporary tensors with which a gradient and its norm are copied to the host.

        Source: `set_norm_for_param_grad_in_gpu`, `async_inplace_copy_grad_to_fp32_buffer_from_gpu`.
        """
        if self.is_last_microbatch:
            piece_elements = self.rank_pieces[id(weight)].element_count
            float64_copy = Storage(self.meter, piece_elements * FLOAT64_BYTES)
            self.offloaded_gradient_norms[id(weight)] = Storage(self.meter, FLOAT64_BYTES)
            del float64_copy
            if self.accumulation_dtype is not FLOAT32:
                fp32_copy = Storage(self.meter, piece_elements * FLOAT32.bytes)
                del fp32_copy
            self._store_gradient(weight, None)

    def backward(self, loss: Tensor) -> None:
        """Replays the backward pass, then reduces the gradients that are not reduced yet."""
        super().backward(loss)
        self.meter.place = AllocationPlace("backward")
        if self.settings.stage == 2:
            self.independent_gradient_partition_epilogue()
        elif self.is_last_microbatch:
            self.reduce_gradients()

    def reduce_gradients(self) -> None:
        """Reduces all gradients after the backward pass (stage 1)."""
        if not self.settings.has_overlapped_reductions:
            for weight in self.parameters:
                if self.gradient(weight) is not None:
                    self.reduce_independent(weight)
        self.independent_gradient_partition_epilogue()

    def independent_gradient_partition_epilogue(self) -> None:
        """Reduces the last bucket, collects the partition's gradients (`independent_gradient_partition_epilogue`)."""
        self.reduce_ipg_grads()
        self._clear_previous_reduced_grads()
        if self.has_offloaded_states:
            pass
        elif self.has_accumulated_partition:
            if self.is_last_microbatch and self.compact_partition is None:
                self._build_compact_grad_partition_buffer()
        else:
            with count_storages_as(self.meter, "gradients"):
                gradients = [
                    self.gradient(weight) or empty(self.meter, weight.shape, self.accumulation_dtype)
                    for weight in self.rank_parameters
                ]
            self.accumulated_partition = gradients if self.accumulated_partition is None else self.accumulated_partition
            del gradients
            if self.is_last_microbatch:
                self._get_flat_partition()
        self.bucket.buffers, self.partition_buffer, self.has_buffers = [], None, False
        for weight in self.parameters:
            weight.grad = None

    def _get_flat_partition(self) -> None:
        """Collects the gradients of the rank's partition, padded with zeros."""
        assert self.accumulated_partition is not None
        self.averaged_gradients, self.accumulated_partition = self.accumulated_partition, None
        padding_elements = self.partition_elements - sum(
            self.rank_pieces[id(weight)].element_count for weight in self.rank_parameters
        )
        if padding_elements:
            with count_storages_as(self.meter, "gradients"):
                self.averaged_gradients.append(empty(self.meter, (padding_elements,), self.accumulation_dtype))

    # --- the step ---------------------------------------------------------------------------------------------------

    def update(self) -> None:
        """Replays the optimizer's step on the rank's partition, which is one tensor (`step`)."""
        self.meter.place = AllocationPlace("step")
        if self.has_offloaded_states:
            self.offloaded_gradient_norms, self.compact_partition, self.accumulated_gradients = {}, None, {}
            return
        (trained_partition,) = self.updated_parameters
        if self.settings.compute_grad_norm:
            for rank_piece in self.rank_pieces.values():  # scaled_global_norm
                float64_copy = Storage(self.meter, rank_piece.element_count * FLOAT64_BYTES)
                del float64_copy
        with count_storages_as(self.meter, "gradients"):
            trained_partition.gradient = self._single_grad_partition()
        self.averaged_gradients = self.compact_partition = None
        self.accumulated_gradients = {}
        self.run_optimizer([trained_partition])

    def _single_grad_partition(self) -> Tensor:
        """Returns the gradients of the rank's partition as one concatenated fp32 tensor."""
        if self.compact_partition is not None:
            return Tensor((self.partition_elements,), FLOAT32, self.compact_partition)
        assert self.averaged_gradients is not None
        flat_gradients = self.averaged_gradients[0].storage
        if len(self.averaged_gradients) > 1:
            flat_gradients = Storage(self.meter, self.partition_elements * self.accumulation_dtype.bytes)
        if self.accumulation_dtype is FLOAT32:
            return Tensor((self.partition_elements,), FLOAT32, flat_gradients)
        return empty(self.meter, (self.partition_elements,), FLOAT32)
