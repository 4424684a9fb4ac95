"""xLSTM's matrix memory in mlstm_kernels: the training kernel for long chunks.

Source: NX-AI/mlstm_kernels at 39d3c617, mlstm_kernels/torch/chunkwise/triton_xl_chunk. What torch.compile fuses (the
sums of the gates, and their gradients) is counted by its results alone. q, k: [batch, heads, tokens, size].
"""

from __future__ import annotations

from collections.abc import Sequence

from ...algebra import Number, are_equal, ceil_div, exact_div
from ..aten import Aten
from ..tensor import FLOAT32, OptionalGradient, Tensor
from .autograd_function import next_power_of_two, record_function

LEAST_CHUNK_TOKENS, LEAST_CHUNKED_TOKENS = 16, 128
"""Smallest number of tokens per chunk; and smallest number of tokens of a sequence that is split into chunks."""


def pad_to_chunks(token_count: Number, chunk_size: Number) -> Number:
    """Rounds a number of tokens up to whole chunks (kernel_wrappers.py, `wrap_chunkwise__pad_zeros`)."""
    return ceil_div(token_count, chunk_size) * chunk_size


def supports_token_counts(token_count: Number, chunk_size: Number) -> bool:
    """Whether the kernel supports these token counts, which must be powers of two (kernel_param_heuristics.py:44)."""
    padded_tokens = pad_to_chunks(token_count, chunk_size)
    return bool(
        chunk_size >= LEAST_CHUNK_TOKENS
        and next_power_of_two(chunk_size) == chunk_size
        and (padded_tokens >= LEAST_CHUNKED_TOKENS or next_power_of_two(padded_tokens) == padded_tokens)
    )


def _chunk_states(aten: Aten, k: Tensor, v: Tensor, chunk_size: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Allocates the matrix memory, normalizer and largest exponent at each chunk boundary (fw_recurrent.py)."""
    batch, heads, token_count, head_size = k.shape
    state_count = exact_div(token_count, chunk_size) + 1
    shape = batch, heads, state_count * head_size
    return (
        aten.new_tensor((*shape, v.shape[-1]), FLOAT32),
        aten.new_tensor(shape, FLOAT32),
        aten.new_tensor((batch, heads, state_count), FLOAT32),
    )


def mlstm_chunkwise(
    aten: Aten, q: Tensor, k: Tensor, v: Tensor, input_gate: Tensor, forget_gate: Tensor, chunk_size: Number
) -> Tensor:
    """Runs the chunkwise mLSTM kernel on any number of tokens, padded to whole chunks (triton_xl_chunk/fwbw.py:18).

    input_gate, forget_gate: [batch, heads, tokens], before their exponential and sigmoid.
    """
    token_count = q.shape[2]
    padded_tokens = pad_to_chunks(token_count, chunk_size)
    chunk_size = chunk_size if padded_tokens >= LEAST_CHUNKED_TOKENS else padded_tokens
    if are_equal(padded_tokens, token_count):
        return _run_chunkwise(aten, (q, k, v, input_gate, forget_gate), chunk_size)[0]
    padded_tensors = [
        aten.new_tensor((*x.shape[:2], padded_tokens, *x.shape[3:]), x.dtype)
        for x in (q, k, v, input_gate, forget_gate)
    ]
    q, k, v, input_gate, forget_gate = (
        aten.write_into(zeros, x) for zeros, x in zip(padded_tensors, (q, k, v, input_gate, forget_gate), strict=True)
    )
    return aten.slice(_run_chunkwise(aten, (q, k, v, input_gate, forget_gate), chunk_size)[0], token_count, 2)


def mlstm_with_states(
    aten: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    input_gate: Tensor,
    forget_gate: Tensor,
    chunk_size: Number,
    states: Sequence[Tensor] | None,
) -> tuple[Tensor, Sequence[Tensor]]:
    """Runs mLSTM with states, without gradients (kernel_wrappers.py, `wrap_chunkwise__arbitrary_sequence_length`).

    It runs chunks, then smaller chunks, then the other tokens one by one.

    states: the memory, its normalizer and the largest exponent before these tokens, zeros by default. Returns the
    output and the states after them.
    """
    remaining_tokens, outputs = q.shape[2], []
    states = _allocate_state_tensors(aten, k, v) if states is None else states
    while chunk_size >= LEAST_CHUNK_TOKENS:
        whole_chunk_tokens = remaining_tokens // chunk_size * chunk_size
        if whole_chunk_tokens:
            h, states = _run_chunkwise(
                aten,
                _dense_tensors(aten, whole_chunk_tokens, q, k, v, input_gate, forget_gate),
                chunk_size,
                returns_last_states=True,
            )
            outputs.append(h)
        remaining_tokens, chunk_size = remaining_tokens - whole_chunk_tokens, chunk_size // 2
    if remaining_tokens:
        h, states = _run_token_by_token(aten, _dense_tensors(aten, remaining_tokens, q, k, v, input_gate, forget_gate))
        outputs.append(h)
    return aten.cat(outputs, 2), states


def _dense_tensors(aten: Aten, row_count: Number, *tensors: Tensor) -> list[Tensor]:
    return [aten.contiguous(aten.slice(x, row_count, 2)) for x in tensors]


def _run_token_by_token(aten: Aten, tensors: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Runs mLSTM token by token (recurrent/native_sequence.py:13, with the kernel of recurrent/triton_step.py:12).

    The outputs of all tokens but the last are one tensor here.
    """
    _, k, v, *_ = tensors
    batch, heads, token_count, _ = k.shape
    _earlier_outputs = aten.new_tensor((batch, heads, token_count - 1, v.shape[-1]), v.dtype)
    states = _allocate_state_tensors(aten, k, v)
    if token_count > 1:  # every token replaces the states
        states = _allocate_state_tensors(aten, k, v)
    _last_output = aten.new_tensor((batch, heads, v.shape[-1]), v.dtype)
    return aten.new_like(v), states


def _allocate_state_tensors(aten: Aten, k: Tensor, v: Tensor) -> Sequence[Tensor]:
    """Allocates the matrix memory, its normalizer and the largest exponent."""
    shape = *k.shape[:2], k.shape[3]
    return (
        aten.new_tensor((*shape, v.shape[-1]), FLOAT32),
        aten.new_tensor(shape, FLOAT32),
        aten.new_tensor((*k.shape[:2], 1), FLOAT32),
    )


def _run_chunkwise(
    aten: Aten, tensors: Sequence[Tensor], chunk_size: Number, returns_last_states: bool = False
) -> tuple[Tensor, Sequence[Tensor]]:
    """Runs the chunkwise mLSTM kernel. returns_last_states: whether copies of the last states are returned."""

    def forward(q: Tensor, k: Tensor, v: Tensor, i: Tensor) -> tuple[Tensor, Tensor, Tensor, Sequence[Tensor]]:
        """Runs the forward kernels of chunkwise mLSTM (triton_xl_chunk/fw.py:20 and fw_parallel.py:16)."""
        _memory, _norm, _largest_exponent = _chunk_states(aten, k, v, chunk_size)
        h = aten.new_tensor((*q.shape[:3], v.shape[-1]), q.dtype)
        n, m = aten.new_tensor(i.shape, q.dtype), aten.new_tensor(i.shape, q.dtype)
        _b = aten.new_tensor(i.shape, FLOAT32)
        return h, n, m, _allocate_state_tensors(aten, k, v) if returns_last_states else ()

    def backward(
        dh: Tensor, q: Tensor, k: Tensor, v: Tensor, input_gate: Tensor, forget_gate: Tensor, n: Tensor, m: Tensor
    ) -> Sequence[OptionalGradient]:
        """Runs the backward kernels of chunkwise mLSTM (triton_xl_chunk/bw.py:26)."""
        dh = aten.contiguous(dh)
        _memory, _norm, _largest_exponent = _chunk_states(aten, k, v, chunk_size)
        _dmemory = aten.new_like(_memory)
        _b, _a = aten.new_tensor(input_gate.shape, FLOAT32), aten.new_tensor(input_gate.shape, FLOAT32)
        dv, dk, dq = aten.new_like(v), aten.new_like(k), aten.new_like(q)
        di, df = aten.new_tensor(input_gate.shape, FLOAT32), aten.new_tensor(forget_gate.shape, FLOAT32)
        return dq, dk, dv, di, df

    with aten.graph.no_grad():
        dense_inputs = [aten.contiguous(x) for x in tensors]
        h, n, m, last_states = forward(*dense_inputs[:4])
    return record_function(aten, "mLSTMChunkwise", tensors, h, backward, (*dense_inputs, n, m)), last_states
