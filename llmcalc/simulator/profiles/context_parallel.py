"""torch's context parallelism (ring attention): each rank's queries attend to all ranks' keys and values.

A rank has two parts of every sequence, one from its beginning and one from its end, so that all ranks have as much to
do under a causal mask. In each round a rank attends to the keys and values of another one, and merges what it finds in
float32. These come in a ring, or all at once; in the backward pass their gradients go round in a ring.

Every method here allocates and frees what the function that it names does, in the same order; a local variable stands
for the local variable of that name. Source: torch/distributed/tensor/experimental/_context_parallel/_attention.py of
torch 2.13, with attention of `_scaled_dot_product_flash_attention`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ...errors import InputError
from ...flow.program import Step
from ...frozen import frozen
from ...parallel.layout import Layout
from ..aten import Aten
from ..autograd import AutogradGraph, record
from ..strides import Shape, elementwise_strides
from ..tensor import FLOAT32, INT64, Dtype, NeedsInputGrad, OptionalGradient, Tensor
from .eager import EagerKernels
from .eager.attention import AttentionKernels

MAX_RANKS = 256
"""Largest number of ranks in a ring whose rounds are replayed."""

CHUNKS_PER_RANK = 2
"""Number of parts of each sequence on a rank."""

DISTINCT_ROUNDS = 3
"""Rounds at most this far from the first, the last or the rank's own round are replayed; all other rounds allocate the
same bytes.
"""

ROW_AXIS = 2
"""Index of the rows' axis in [batch, heads, rows, size]."""


@frozen
class ContextParallelRing:
    """The ranks of a context-parallel group, each with a part of the sequence.

    ranks: number of ranks. rank: index of this rank. uses_all_gather: whether all keys and values come at once
    (`allgather`), else in a ring (`alltoall`).
    runs_only_peak_rounds: whether rounds are left out that allocate what the round before allocates, which changes no
        peak of allocated bytes; false by default.
    """

    ranks: int
    rank: int
    uses_all_gather: bool = True
    runs_only_peak_rounds: bool = False

    def rounds(self) -> list[int]:
        """Returns the indices of the rounds of ring attention that are replayed; a full ring has one round per rank."""
        boundary_rounds = 0, self.rank, self.ranks - 1
        return [
            round_number
            for round_number in range(self.ranks)
            if not self.runs_only_peak_rounds
            or any(abs(round_number - boundary_round) <= DISTINCT_ROUNDS for boundary_round in boundary_rounds)
        ]


def context_parallel_ring(layout: Layout, rank: int) -> ContextParallelRing | None:
    """Returns the context-parallel ring of a rank; None without context parallelism."""
    if layout.cp == 1:
        return None
    return ContextParallelRing(layout.cp, layout.coordinates(rank).cp, layout.cp_comm == "allgather")


def sequence_tokens_of_rank(layout: Layout, seq: int) -> int:
    """Returns the number of a sequence's tokens that one context-parallel rank has.

    Raises `InputError` where torch fails, and for a ring of more than `MAX_RANKS`.
    """
    chunk_count = CHUNKS_PER_RANK * layout.cp
    if layout.cp > MAX_RANKS:
        raise InputError(
            f"--cp {layout.cp}: a round of torch's ring is replayed for each rank; expected at most {MAX_RANKS}"
        )
    if layout.cp > 1 and layout.cp_comm == "a2a":
        raise InputError("--cp-comm a2a: torch exchanges keys and values in a ring or all at once; expected p2p")
    if layout.cp > 1 and seq % chunk_count:
        nearest_length = max(chunk_count, seq - seq % chunk_count)
        raise InputError(
            f"--seq {seq}: each rank of --cp {layout.cp} has {CHUNKS_PER_RANK} parts of it; expected {nearest_length}"
        )
    return seq // layout.cp


class RingAttentionKernels(EagerKernels):
    """Kernels of ring attention over context-parallel ranks. ring: the ranks; None (default) for one device."""

    ring: ContextParallelRing | None = None

    def do_repeat(self, operation: Step) -> None:
        """Repeats key heads for the query heads, as torchtitan's `repeat_kv` does."""
        if self.ring is None:
            super().do_repeat(operation)
        elif operation.options["tiled"]:
            AttentionKernels.do_repeat(self, operation)
        else:
            x, heads = self.tensor_of(operation.input_values[0]), operation.output_values[0].axes[0].size
            self.store_tensor(operation.output_values[0], self.aten.repeat_interleave(x, heads // x.shape[2], 2))

    def attention_AttentionCore(self, operation: Step) -> None:
        if self.ring is not None:
            is_cross_attention = operation.input_values[1].rows != operation.input_values[0].rows
            has_window = operation.options.get("window") is not None or operation.options.get("chunk") is not None
            if (
                self.choices.attention not in ("flash", "sdpa")
                or is_cross_attention
                or has_window
                or not operation.options["causal"]
            ):
                raise self.unsupported(
                    f"--cp {self.ring.ranks} takes causal attention without a window in flash kernels", operation.name
                )
        super().attention_AttentionCore(operation)

    def scaled_dot_product(self, operation: Step, q: Tensor, k: Tensor, v: Tensor, is_cross_attention: bool) -> Tensor:
        """Runs flash attention, to which torch's ring dispatches scaled_dot_product_attention."""
        if self.ring is None:
            return super().scaled_dot_product(operation, q, k, v, is_cross_attention)
        return self.run_attention_core(self.flash, q, k, v)

    def flash(self, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> Tensor:
        if self.ring is None:
            return super().flash(q, k, v, sinks)
        if sinks is not None:
            raise self.unsupported(f"--cp {self.ring.ranks} takes attention without sinks")
        autograd_graph, kernel_name = self.graph, "flash_attention"
        ring_kernels = RingKernels(autograd_graph, self.ring, self.choices.is_on_gpu)
        kernel_outputs: list[Tensor] = []

        def kernel_output(output_index: int) -> Tensor:
            if not kernel_outputs:
                with autograd_graph.no_grad():
                    kernel_outputs.extend(ring_kernels.forward(q, k, v))
            return kernel_outputs[output_index]

        saved_results = autograd_graph.result_store
        outputs = [
            kernel_output(output_index)
            if saved_results is None
            else saved_results.operation_result(kernel_name, partial(kernel_output, output_index))
            for output_index in range(4)
        ]
        kernel_outputs.clear()
        output, *other_outputs = outputs
        del outputs

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
            return ring_kernels.backward(output_gradient, *saved_tensors[:5])

        return record(autograd_graph, kernel_name, (q, k, v), output, backward, q, k, v, output, *other_outputs)


class KeyValueRotater:
    """The exchange of keys and values between ranks, in a ring or (`uses_all_gather`) by one all-gather."""

    def __init__(self, autograd_graph: AutogradGraph, ranks: int, uses_all_gather: bool) -> None:
        self.graph: AutogradGraph = autograd_graph
        self.ranks: int = ranks
        self.gathers: bool = uses_all_gather
        self.buffer: Tensor | None = None

    def exchange_buffers(self, curr_buffer: Tensor) -> None:
        """Receives the previous rank's buffer (`_AllToAllRotater`), or once all buffers (`_AllGatherRotater`)."""
        if self.gathers and self.buffer is not None:
            return
        buffer_size = curr_buffer.shape[0]
        self.buffer = self.graph.new_tensor(
            (buffer_size * self.ranks if self.gathers else buffer_size,), curr_buffer.dtype
        )

    def next_buffer(self, template: Tensor) -> Tensor:
        """Returns the keys and values received for the next round. template: a tensor like the buffer's first half."""
        assert self.buffer is not None
        return Tensor((2 * template.numel,), self.buffer.dtype, self.buffer.storage)


class AttentionOutputMerger:
    """Merges the outputs of ring attention's rounds in float32 (`_SDPAMerger`)."""

    def __init__(self, aten: Aten) -> None:
        self.aten = aten
        self.out: Tensor | None = None
        self.lse: Tensor | None = None

    def merge_round(self, output: Tensor, lse: Tensor, is_partial: bool) -> None:
        """Merges the output of one round. is_partial: whether the output covers only the second half of the queries."""
        self.dtype: Dtype = output.dtype
        output = self.aten.to(output, FLOAT32)
        self._merge_block_output(output, self.aten.unsqueeze(lse, -1), is_partial)

    def _merge_block_output(self, block_out: Tensor, block_lse: Tensor, is_half_block: bool) -> None:
        aten = self.aten
        if self.lse is None or self.out is None:
            self.lse, self.out = block_lse, block_out
            return
        lse = first_half_of_rows(aten, self.lse) if is_half_block else self.lse
        output = first_half_of_rows(aten, self.out) if is_half_block else self.out
        output = aten.new_like(output, self._merge_weights(output, lse, block_out, block_lse))
        lse = aten.new_like(lse, aten.new_like(aten.new_like(lse, block_lse)))
        if is_half_block:
            self.lse = partial_update(aten, self.lse)
            self.out = partial_update(aten, self.out)
        else:
            self.lse, self.out = lse, output

    def _merge_weights(self, output: Tensor, lse: Tensor, block_out: Tensor, block_lse: Tensor) -> Tensor:
        aten = self.aten
        weight = aten.new_like(aten.new_like(block_lse, lse))
        return aten.new_like(weight, aten.new_like(output, block_out))

    def merged_results(self) -> tuple[Tensor, Tensor]:
        """Returns the output in the requested number format, and the logsumexp."""
        assert self.out is not None
        assert self.lse is not None
        merged_output = self.aten.to(self.out, self.dtype)
        return merged_output, Tensor(self.lse.shape[:-1], self.lse.dtype, self.lse.storage, self.lse.strides[:-1])


def first_half_of_rows(aten: Aten, x: Tensor) -> Tensor:
    """Returns a view of the first half of a tensor's rows."""
    return aten.slice(x, x.shape[ROW_AXIS] // CHUNKS_PER_RANK, ROW_AXIS)


def partial_update(aten: Aten, full_output: Tensor) -> Tensor:
    """Returns a copy of a tensor with new values in half of the rows (`_partial_update`)."""
    half_outputs = [first_half_of_rows(aten, full_output)] * CHUNKS_PER_RANK
    return aten.cat(half_outputs, ROW_AXIS)


class RingKernels:
    """The kernels of ring attention. allocates_workspace: whether kernels also allocate their GPU workspaces."""

    def __init__(self, autograd_graph: AutogradGraph, ring: ContextParallelRing, allocates_workspace: bool) -> None:
        self.graph: AutogradGraph = autograd_graph
        self.ring: ContextParallelRing = ring
        self.allocates_workspace: bool = allocates_workspace
        self.aten: Aten = Aten(autograd_graph)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Runs the forward pass of ring attention (torch's `_templated_ring_attention`)."""
        aten, (rank, ring_size) = self.aten, (self.ring.rank, self.ring.ranks)
        key, value = aten.contiguous(key), aten.contiguous(value)
        sdpa_merger = AttentionOutputMerger(aten)
        rotater = KeyValueRotater(self.graph, ring_size, self.ring.uses_all_gather)
        for round_number in self.ring.rounds():
            if round_number > 0:
                next_kv = rotater.next_buffer(key)
                key, value = _split_keys_and_values(next_kv, key.shape)
            if round_number < ring_size - 1:
                next_kv = self._join_keys_and_values(key, value)
                rotater.exchange_buffers(next_kv)
                del next_kv
            if round_number == 0:
                q, _k, _v, is_half_block = query, key, value, False
            elif round_number <= rank:
                q, _k, _v, is_half_block = query, first_half_of_rows(aten, key), first_half_of_rows(aten, value), False
            else:
                q, _k, _v, is_half_block = first_half_of_rows(aten, query), key, value, True
            output, logsumexp, *seed_and_offset = self._flash_forward(q)
            sdpa_merger.merge_round(output, logsumexp, is_half_block)
        seed, offset = seed_and_offset
        return *sdpa_merger.merged_results(), seed, offset

    def _flash_forward(self, q: Tensor) -> list[Tensor]:
        """Runs flash attention on one part of the keys (`_scaled_dot_product_flash_attention`)."""
        new_tensor = self.graph.new_tensor
        output = new_tensor(q.shape, q.dtype, elementwise_strides(((q.shape, q.strides),), q.shape))
        return [output, new_tensor(q.shape[:-1], FLOAT32), new_tensor((2,), INT64), new_tensor((), INT64)]

    def backward(
        self, grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, output: Tensor, logsumexp: Tensor
    ) -> list[OptionalGradient]:
        """Runs the backward pass of ring attention (torch's `_templated_ring_attention_backward`)."""
        aten, (rank, ring_size) = self.aten, (self.ring.rank, self.ring.ranks)
        grad_query, grad_key, grad_value = (aten.new_like(x, dtype=FLOAT32) for x in (query, key, value))
        key, value = aten.contiguous(key), aten.contiguous(value)
        kv_rotater = KeyValueRotater(self.graph, ring_size, self.ring.uses_all_gather)
        dkv_rotater = KeyValueRotater(self.graph, ring_size, uses_all_gather=False)
        for round_number in self.ring.rounds():
            if round_number > 0:
                kv_buffer = kv_rotater.next_buffer(key)
                key, value = _split_keys_and_values(kv_buffer, key.shape)
            if round_number != ring_size - 1:
                _next_kv = self._join_keys_and_values(key, value)
                kv_rotater.exchange_buffers(_next_kv)
            if round_number == 0:
                q, k, v, _lse = query, key, value, logsumexp
            elif round_number <= rank:
                q, k, v, _lse = query, first_half_of_rows(aten, key), first_half_of_rows(aten, value), logsumexp
            else:
                q, k, v, _lse = first_half_of_rows(aten, query), key, value, self._copy_second_half(logsumexp)
            _grad_query, _grad_key, _grad_value = self._flash_backward(q, k, v)
            if round_number > 0:
                next_grad_kv = dkv_rotater.next_buffer(grad_key)
                grad_key, grad_value = _split_keys_and_values(next_grad_kv, grad_key.shape)
                if round_number <= rank:
                    grad_key = partial_update(aten, grad_key)
                    grad_value = partial_update(aten, grad_value)
            next_grad_kv = self._join_keys_and_values(grad_key, grad_value)
            dkv_rotater.exchange_buffers(next_grad_kv)
            if round_number > rank:
                grad_query = partial_update(aten, grad_query)
        grad_query = aten.to(grad_query, query.dtype)
        next_grad_kv = aten.to(dkv_rotater.next_buffer(grad_key), key.dtype)
        grad_key, grad_value = _split_keys_and_values(next_grad_kv, grad_key.shape)
        return [grad_query, grad_key, grad_value]

    def _flash_backward(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Runs flash attention's backward kernel, which on a GPU accumulates dQ in float32."""
        gradients = [self.aten.new_like(x) for x in (q, k, v)]
        if self.allocates_workspace:
            fp32_query_gradient = self.graph.new_tensor(q.shape, FLOAT32)
            logsumexp = self.graph.new_tensor(q.shape[:-1], FLOAT32)
            del fp32_query_gradient, logsumexp
        return gradients

    def _copy_second_half(self, logsumexp: Tensor) -> Tensor:
        """Copies the second half of the logsumexp."""
        return self.aten.contiguous(self.aten.slice(logsumexp, logsumexp.shape[ROW_AXIS] // CHUNKS_PER_RANK, ROW_AXIS))

    def _join_keys_and_values(self, key: Tensor, value: Tensor) -> Tensor:
        """Concatenates keys and values: `torch.cat([key.flatten(), value.flatten()])`."""
        return self.aten.cat([self.aten.flatten(key), self.aten.flatten(value)], 0)


def _split_keys_and_values(kv_buffer: Tensor, shape: Shape) -> tuple[Tensor, Tensor]:
    """Splits a buffer into two tensors of a shape."""
    return Tensor(shape, kv_buffer.dtype, kv_buffer.storage), Tensor(shape, kv_buffer.dtype, kv_buffer.storage)
