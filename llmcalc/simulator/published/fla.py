"""Linear attention of flash-linear-attention: chunked Triton kernels.

Source: fla-org/flash-linear-attention at bc3b101d, fla/ops and fla/modules. Each function allocates in the order of its
source, and its local variables stand for those of its source; one whose name begins with an underscore is only held,
until its function returns. No further package (tilelang, FlashQLA) replaces the Triton kernels.

B: sequences, T: tokens, H: heads of queries and keys, HV: heads of values, K, V: the sizes of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...algebra import Number, are_equal, ceil_div, exact_div, minimum
from ..aten import Aten
from ..tensor import FLOAT32, OptionalGradient, Tensor
from .autograd_function import H100, Accelerator, OptionalTensor, next_power_of_two, record_function

CHUNK_TOKENS = 64
"""Number of tokens that a kernel computes at once."""

HOPPER_SHARED_MEMORY, ADA_SHARED_MEMORY = 232448, 101376
"""Shared memory per block, in bytes, from which on fla uses larger tiles (fla/utils/_accelerator.py:196)."""


def tile_width(head_size: Number, accelerator: Accelerator) -> int:
    """Returns the tile width of a head (fla/ops/common/chunk_o.py:730)."""
    widest_tile = (
        128
        if accelerator.shared_memory >= HOPPER_SHARED_MEMORY
        else 64
        if accelerator.shared_memory >= ADA_SHARED_MEMORY
        else 32
    )
    return min(max(next_power_of_two(head_size), 16), widest_tile)


# --- the short convolution -------------------------------------------------------------------------------------------


def causal_conv1d(
    aten: Aten, x: Tensor, weight: Tensor, bias: OptionalTensor = None, has_activation: bool = True
) -> Tensor:
    """Runs a short causal convolution (`CausalConv1dFunction`). x: [B, T, channels]; weight: [channels, width].

    Source: fla/modules/conv/triton/ops.py:357.

    has_activation: whether SiLU follows, inside the kernel.
    """

    def backward(dy: Tensor, x: Tensor, weight: Tensor, bias: OptionalTensor) -> Sequence[OptionalGradient]:
        chunk_count = x.shape[0] * ceil_div(x.shape[1], CHUNK_TOKENS)
        _y = aten.new_tensor(x.shape, x.dtype) if has_activation else None
        dx = aten.new_like(x)
        dw = aten.new_tensor((chunk_count, *weight.shape), FLOAT32)
        db = None if bias is None else aten.new_tensor((chunk_count, *bias.shape), FLOAT32)
        dw = aten.to(aten.sum(dw, 0), weight.dtype)
        if db is not None and bias is not None:
            db = aten.to(aten.sum(db, 0), bias.dtype)
        return dx, dw, db

    with aten.graph.no_grad():
        contiguous_weight = aten.contiguous(weight)
        y = aten.new_tensor(x.shape, x.dtype)
    return record_function(aten, "CausalConv1dFunction", (x, weight, bias), y, backward, (x, contiguous_weight, bias))


# --- norms -----------------------------------------------------------------------------------------------------------


def rms_norm_gated(aten: Aten, x: Tensor, g: Tensor, weight: Tensor, accelerator: Accelerator = H100) -> Tensor:
    """Computes the gated RMSNorm norm(x) · activation(g) (fla/modules/fused_norm_gate.py:649)."""
    return layer_norm_gated(aten, x, g, weight, None, accelerator)


def layer_norm_gated(
    aten: Aten, x: Tensor, g: Tensor, weight: Tensor, bias: OptionalTensor, accelerator: Accelerator = H100
) -> Tensor:
    """Computes norm(x) · activation(g): a LayerNorm, or an RMSNorm if bias is None (`LayerNormGatedFunction`)."""
    shape = x.shape

    def flatten_rows(x: Tensor) -> Tensor:
        return aten.flatten(x, 0, -2)

    def backward(
        dy: Tensor, x: Tensor, g: Tensor, weight: Tensor, bias: OptionalTensor, mean: OptionalTensor, rstd: Tensor
    ) -> Sequence[OptionalGradient]:
        dy = aten.contiguous(dy)
        dx, dg = aten.new_tensor(x.shape, x.dtype), aten.new_tensor(x.shape, x.dtype)
        partial_shape = minimum(accelerator.multiprocessors, x.shape[0]), x.shape[1]
        dw = aten.new_tensor(partial_shape, FLOAT32)
        db = None if bias is None else aten.new_tensor(partial_shape, FLOAT32)
        dw = aten.to(aten.sum(dw, 0), weight.dtype)
        if db is not None and bias is not None:
            db = aten.to(aten.sum(db, 0), bias.dtype)
        return aten.reshape(dx, shape), aten.reshape(dg, shape), dw, db

    with aten.graph.no_grad():
        flat_x, gate = flatten_rows(aten.contiguous(x)), flatten_rows(aten.contiguous(g))
        y = aten.new_like(flat_x)
        mean = None if bias is None else aten.new_tensor((flat_x.shape[0],), FLOAT32)
        rstd = aten.new_tensor((flat_x.shape[0],), FLOAT32)
        y = aten.reshape(y, shape)
    saved_tensors = flat_x, gate, weight, bias, mean, rstd
    return record_function(aten, "LayerNormGatedFunction", (x, g, weight, bias), y, backward, saved_tensors)


def rms_norm(aten: Aten, x: Tensor, weight: Tensor, accelerator: Accelerator = H100) -> Tensor:
    """Computes an RMSNorm over the last axis (`LayerNormFunction`, fla/modules/layernorm.py)."""
    shape = x.shape

    def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor) -> Sequence[OptionalGradient]:
        _dy = aten.flatten(aten.contiguous(dy), 0, -2)
        dx = aten.new_tensor(x.shape, x.dtype)
        dw = aten.new_tensor((minimum(accelerator.multiprocessors, x.shape[0]), x.shape[1]), FLOAT32)
        dw = aten.to(aten.sum(dw, 0), weight.dtype)
        return aten.reshape(dx, shape), dw

    with aten.graph.no_grad():
        flat_x = aten.flatten(aten.contiguous(x), 0, -2)
        y = aten.new_like(flat_x)
        rstd = aten.new_tensor((flat_x.shape[0],), FLOAT32)
        y = aten.reshape(y, shape)
    return record_function(aten, "LayerNormFunction", (x, weight), y, backward, (flat_x, weight, rstd))


def rms_norm_linear(
    aten: Aten, x: Tensor, norm_weight: Tensor, weight: Tensor, accelerator: Accelerator = H100
) -> Tensor:
    """Computes an RMSNorm over the last axis and a linear layer (`LayerNormLinearFunction`).

    The backward pass computes the norm's output again.
    """
    shape = x.shape

    def backward(
        dy: Tensor, x: Tensor, norm_weight: Tensor, weight: Tensor, rstd: Tensor
    ) -> Sequence[OptionalGradient]:
        dy = aten.flatten(dy, 0, -2)
        d_normed = aten.linear(dy, aten.transpose(weight, 0, 1))
        dx, y, dnorm = _norm_linear_bwd(aten, x, norm_weight, accelerator)
        dw = aten.matmul(aten.transpose(dy, 0, 1), y)
        del d_normed
        return aten.reshape(dx, shape), dnorm, dw

    with aten.graph.no_grad():
        flat_x = aten.flatten(aten.contiguous(x), 0, -2)
        y = aten.new_like(flat_x)
        rstd = aten.new_tensor((flat_x.shape[0],), FLOAT32)
        output = aten.linear(aten.reshape(y, shape), weight)
        del y
    saved_tensors = flat_x, norm_weight, weight, rstd
    inputs = x, norm_weight, weight
    return record_function(aten, "LayerNormLinearFunction", inputs, output, backward, saved_tensors)


def _norm_linear_bwd(
    aten: Aten, x: Tensor, norm_weight: Tensor, accelerator: Accelerator
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the norm's gradients, and its output again (fla/modules/layernorm.py, `layer_norm_bwd`)."""
    dx, y = aten.new_tensor(x.shape, x.dtype), aten.new_like(x)
    dw = aten.new_tensor((minimum(accelerator.multiprocessors, x.shape[0]), x.shape[1]), FLOAT32)
    return dx, y, aten.to(aten.sum(dw, 0), norm_weight.dtype)


def _l2norm_fwd(aten: Aten, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales x to length 1, and returns the inverse length (fla/modules/l2norm.py:148)."""
    return aten.new_like(x), aten.new_tensor(x.shape[:-1], FLOAT32)


# --- what the delta rules share --------------------------------------------------------------------------------------


def _fwd_h(aten: Aten, k: Tensor, u: Tensor, heads: Number, head_size: Number) -> tuple[Tensor, Tensor]:
    """Computes the state before each chunk, and the corrected values (fla/ops/common/chunk_delta_h.py:687)."""
    batch, token_count = k.shape[:2]
    h = aten.new_tensor((batch, ceil_div(token_count, CHUNK_TOKENS), heads, u.shape[-1], head_size), k.dtype)
    return h, aten.new_like(u)


def _bwd_dhu(aten: Aten, q: Tensor, dv: Tensor, heads: Number, head_size: Number) -> tuple[Tensor, Tensor]:
    """Computes the gradients of the states and of the corrected values (fla/ops/common/chunk_delta_h.py:747)."""
    batch, token_count = q.shape[:2]
    dh = aten.new_tensor((batch, ceil_div(token_count, CHUNK_TOKENS), heads, dv.shape[-1], head_size), q.dtype)
    return dh, aten.new_like(dv)


def _sum_value_heads(aten: Aten, x: Tensor, heads: Number) -> Tensor:
    """Sums gradients over all value heads that share a key head: x.view(B, T, H, HV // H, K).sum(3)."""
    return aten.sum(aten.unflatten(x, 2, (heads, exact_div(x.shape[2], heads))), 3)


def _gate_bwd(aten: Aten, g: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gradients of the gate, A and the bias.

    Source: fla/ops/gated_delta_rule/gate.py:197, fla/ops/kda/gate.py:280.
    """
    row_count = g.shape[0] * g.shape[1]
    dg = aten.new_like(g, dtype=FLOAT32)
    da = aten.new_tensor((ceil_div(row_count, 32), *a_log.shape), FLOAT32)
    dg = aten.to(dg, g.dtype)
    da = aten.to(aten.sum(da, 0), a_log.dtype)
    dbias = aten.to(aten.sum(aten.reshape(dg, (row_count, dt_bias.shape[0])), 0), dt_bias.dtype)
    return dg, da, dbias


def fused_recurrent(aten: Aten, v: Tensor) -> Tensor:
    """Runs a delta rule over all tokens in one kernel, without gradients. v: [B, T, HV, V], dense like q, k and gates.

    Source: fla/ops/gated_delta_rule/fused_recurrent.py:181, fla/ops/kda/fused_recurrent.py.
    """
    return aten.new_like(v)


LONGEST_RECURRENT_SEQUENCE = 64
"""Largest number of tokens for which layers with delta rules run `fused_recurrent` without gradients (fla/layers)."""

# --- the gated delta rule --------------------------------------------------------------------------------------------


def _gdn_fwd(
    aten: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, computes_gates_in_kernel: bool
) -> tuple[Tensor, ...]:
    """Runs the forward pass of the chunked gated delta rule (fla/ops/gated_delta_rule/chunk.py:256 and :30)."""
    q, q_rstd = _l2norm_fwd(aten, q)
    k, k_rstd = _l2norm_fwd(aten, k)
    beta = aten.new_like(beta, dtype=FLOAT32) if computes_gates_in_kernel else beta
    o, g, a = _gdn_chunks(aten, k, v, g)
    return o, q, q_rstd, k, k_rstd, g, beta, a


def _gdn_chunks(aten: Aten, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the gated delta rule's output, the summed decays, and the inverse triangular matrix of each chunk."""
    batch, token_count, _, head_size = k.shape
    heads = v.shape[2]
    g = aten.new_like(g, dtype=FLOAT32)
    a = aten.new_tensor((batch, token_count, heads, CHUNK_TOKENS), k.dtype)
    _w, u = aten.new_tensor((batch, token_count, heads, head_size), k.dtype), aten.new_like(v)
    _h, v_new = _fwd_h(aten, k, u, heads, head_size)
    return aten.new_like(v_new), g, a


def _gdn_bwd(
    aten: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    do: Tensor,
    gate: tuple[Tensor, Tensor, Tensor] | None,
    accelerator: Accelerator,
) -> tuple[Tensor, ...]:
    """Runs the backward pass of the chunked gated delta rule (fla/ops/gated_delta_rule/chunk.py:117).

    gate: the gate's input, A and bias, if the kernel computes the gate.
    """
    heads, head_size = v.shape[2], k.shape[3]
    w, u = aten.new_tensor((*k.shape[:2], heads, head_size), k.dtype), aten.new_like(v)
    _h, _v_new = _fwd_h(aten, k, u, heads, head_size)
    dv = aten.new_like(do)
    _dh, dv = _bwd_dhu(aten, q, dv, heads, head_size)
    dq, dk, _dw, dg = _dqkwg(aten, q, k, g, w, accelerator)
    _dk2, dv, db, _dg2 = _wy_bwd(aten, k, v, g, beta)
    dg = aten.new_like(dg)
    return (dq, dk, dv, db, *((dg,) if gate is None else _gate_bwd(aten, *gate)))


def _dqkwg(aten: Aten, q: Tensor, k: Tensor, g: Tensor, w: Tensor, accelerator: Accelerator) -> tuple[Tensor, ...]:
    """Computes the gradients of queries, keys, WY factor w and decays in each chunk (fla/ops/common/chunk_o.py:700)."""
    heads, head_size = k.shape[2:]
    dq, dk = aten.new_tensor(w.shape, q.dtype), aten.new_tensor(w.shape, k.dtype)
    dg = aten.new_tensor((ceil_div(head_size, tile_width(head_size, accelerator)), *g.shape), FLOAT32)
    dw = aten.new_like(w)
    if not are_equal(heads, w.shape[2]):
        dq = _sum_value_heads(aten, dq, heads)
        dk = _sum_value_heads(aten, dk, heads)
    dg = aten.sum(dg, 0)
    return dq, dk, dw, dg


def _wy_bwd(aten: Aten, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Computes the gradients of k, v, β and decays through the WY factors (fla/ops/gated_delta_rule/wy_fast.py:298)."""
    batch, token_count, heads, head_size = k.shape
    dk, dv = aten.new_tensor((batch, token_count, v.shape[2], head_size), k.dtype), aten.new_like(v)
    dg, db = aten.new_like(g), aten.new_like(beta)
    if not are_equal(heads, v.shape[2]):
        dk = _sum_value_heads(aten, dk, heads)
    return dk, dv, db, dg


def chunk_gated_delta_rule(
    aten: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    a_log: OptionalTensor = None,
    dt_bias: OptionalTensor = None,
    accelerator: Accelerator = H100,
) -> Tensor:
    """Runs the chunked gated delta rule with L2 norms of q and k (fla/ops/gated_delta_rule/chunk.py:253).

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g, beta: [B, T, HV]. With a_log and dt_bias, [HV] each, the kernel applies the
    activations of g and beta; without them g is the log decay in float32 and beta follows its sigmoid.
    """

    def backward(do: Tensor, *saved_tensors: Any) -> Sequence[OptionalGradient]:
        q, _, k, _, v, g, beta_raw, beta, _, g_input, a_log, dt_bias = saved_tensors
        do = aten.contiguous(do)
        gate = None
        if g_input is not None and a_log is not None and dt_bias is not None:
            gate = g_input, a_log, dt_bias
        dq, dk, dv, db, dg, *gate_gradients = _gdn_bwd(aten, q, k, v, g, beta, do, gate, accelerator)
        dq = aten.new_like(q)
        dk = aten.new_like(k)
        db = db if gate is None else aten.new_like(beta_raw)
        return dq, dk, dv, aten.to(dg, g.dtype), db, *(gate_gradients or (None, None))

    computes_gates_in_kernel = a_log is not None
    with aten.graph.no_grad():
        dense_inputs = [aten.contiguous(x) for x in (q, k, v, g, beta)]
        o, q_unit, q_rstd, k_unit, k_rstd, g_sum, beta_sigmoid, a = _gdn_fwd(
            aten, *dense_inputs, computes_gates_in_kernel=computes_gates_in_kernel
        )
    saved_tensors = (
        q_unit,
        q_rstd,
        k_unit,
        k_rstd,
        dense_inputs[2],
        g_sum,
        dense_inputs[4],
        beta_sigmoid,
        a,
        dense_inputs[3] if computes_gates_in_kernel else None,
        a_log,
        dt_bias,
    )
    return record_function(
        aten, "ChunkGatedDeltaRuleFunction", (q, k, v, g, beta, a_log, dt_bias), o, backward, saved_tensors
    )


def chunk_gated_delta_rule_without_norms(
    aten: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, accelerator: Accelerator = H100
) -> Tensor:
    """Runs the chunked gated delta rule without norms, gate and sigmoid, which the caller computes.

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g, in fp32, and beta: [B, T, HV].
    """

    def backward(
        do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, a: Tensor
    ) -> Sequence[OptionalGradient]:
        dq, dk, dv, db, dg = _gdn_bwd(aten, q, k, v, g, beta, aten.contiguous(do), None, accelerator)
        return aten.to(dq, q.dtype), aten.to(dk, k.dtype), aten.to(dv, v.dtype), dg, aten.to(db, beta.dtype)

    with aten.graph.no_grad():
        q_in, k_in, v_in, g_in, beta_in = (aten.contiguous(x) for x in (q, k, v, g, beta))
        o, g_sum, a = _gdn_chunks(aten, k_in, v_in, g_in)
    saved_tensors = q_in, k_in, v_in, g_sum, beta_in, a
    return record_function(aten, "ChunkGatedDeltaRuleFunction", (q, k, v, g, beta), o, backward, saved_tensors)


# --- the delta rule without a decay ----------------------------------------------------------------------------------


def chunk_delta_rule(aten: Aten, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Runs the chunked delta rule with L2 norms of q and k (fla/ops/delta_rule/chunk.py, `ChunkDeltaRuleFunction`).

    q, k: [B, T, H, K]; v: [B, T, H, V]; beta: [B, T, H], behind its sigmoid.
    """

    def backward(do: Tensor, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
        q, _, k, _, v, beta, _ = saved_tensors
        dq, dk, dv, db = _delta_bwd(aten, q, k, v, beta, aten.contiguous(do))
        dq = aten.new_like(q)
        dk = aten.new_like(k)
        return dq, dk, dv, db

    with aten.graph.no_grad():
        q_in, k_in, v_in, beta_in = (aten.contiguous(x) for x in (q, k, v, beta))
        q_unit, q_rstd = _l2norm_fwd(aten, q_in)
        k_unit, k_rstd = _l2norm_fwd(aten, k_in)
        o, a = _delta_chunks(aten, k_unit, v_in)
    saved_tensors = q_unit, q_rstd, k_unit, k_rstd, v_in, beta_in, a
    return record_function(aten, "ChunkDeltaRuleFunction", (q, k, v, beta), o, backward, saved_tensors)


def _delta_chunks(aten: Aten, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the output and the inverse triangular matrix of each chunk (fla/ops/delta_rule/chunk.py:17)."""
    heads, head_size = k.shape[2:]
    a = aten.new_tensor((*k.shape[:3], CHUNK_TOKENS), FLOAT32)
    a = aten.new_like(a, dtype=k.dtype)
    _w, u = aten.new_like(k), aten.new_like(v)
    _h, v_new = _fwd_h(aten, k, u, heads, head_size)
    return aten.new_like(v_new), a


def _delta_bwd(aten: Aten, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, do: Tensor) -> tuple[Tensor, ...]:
    """Runs the backward pass of the chunked delta rule (fla/ops/delta_rule/chunk.py:64)."""
    heads, head_size = k.shape[2:]
    _w, u = aten.new_like(k), aten.new_like(v)
    _h, _v_new = _fwd_h(aten, k, u, heads, head_size)
    dv = aten.new_like(do)
    _dh, dv = _bwd_dhu(aten, q, dv, heads, head_size)
    dq, dk, _dw = aten.new_like(q), aten.new_like(k), aten.new_like(k)
    _dk2, dv, db = aten.new_like(k), aten.new_like(v), aten.new_like(beta)
    return dq, dk, dv, db


def fused_recurrent_delta_rule(aten: Aten, q: Tensor, k: Tensor, v: Tensor, beta: Tensor) -> Tensor:
    """Runs the delta rule token by token in one kernel (fla/ops/delta_rule/fused_recurrent.py).

    q, k: [B, T, H, K]; v: [B, T, H, V]; beta: [B, T, H], behind its sigmoid.
    """

    def backward(do: Tensor, *saved_tensors: Tensor) -> Sequence[OptionalGradient]:
        q, _, k, _, u, beta = saved_tensors
        do = aten.contiguous(do)
        dq, dk, dv, db = _recurrent_delta_bwd(aten, q, k, u, beta)
        dq = aten.new_like(q)
        dk = aten.new_like(k)
        return dq, dk, dv, db

    with aten.graph.no_grad():
        q_in, k_in, v_in, beta_in = (aten.contiguous(x) for x in (q, k, v, beta))
        q_unit, q_rstd = _l2norm_fwd(aten, q_in)
        k_unit, k_rstd = _l2norm_fwd(aten, k_in)
        o, u = aten.new_like(v_in, dtype=q.dtype), aten.new_like(v_in)
    saved_tensors = q_unit, q_rstd, k_unit, k_rstd, u, beta_in
    return record_function(aten, "FusedRecurrentFunction", (q, k, v, beta), o, backward, saved_tensors)


def _recurrent_delta_bwd(aten: Aten, q: Tensor, k: Tensor, u: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Runs the backward pass of the recurrent delta rule, in tiles of 32 values, whose gradients are added."""
    value_size = u.shape[-1]
    tile_count = ceil_div(value_size, min(next_power_of_two(value_size), 32))
    dq, dk = aten.new_tensor((tile_count, *q.shape), q.dtype), aten.new_tensor((tile_count, *k.shape), q.dtype)
    dv, db = aten.new_tensor((1, *u.shape), q.dtype), aten.new_tensor((tile_count, *beta.shape), q.dtype)
    dq = aten.sum(dq, 0)
    dk = aten.sum(dk, 0)
    dv = aten.sum(dv, 0)
    return dq, dk, dv, aten.sum(db, 0)


# --- linear attention with a decay -----------------------------------------------------------------------------------


def _chunk_states(aten: Aten, k: Tensor, v: Tensor, dtype: Any) -> Tensor:
    """Allocates a state, or its gradient, for each chunk (fla/ops/common/chunk_h.py, `chunk_fwd_h`, `chunk_bwd_dh`)."""
    batch, token_count, heads, head_size = k.shape
    return aten.new_tensor((batch, ceil_div(token_count, CHUNK_TOKENS), heads, head_size, v.shape[-1]), dtype)


def chunk_retention(aten: Aten, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Runs linear attention with a fixed decay per head (fla/ops/retention/chunk.py, fla/ops/simple_gla/chunk.py).

    q, k: [B, T, H, K]; v: [B, T, H, V].
    """

    def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, g_gamma: Tensor) -> Sequence[OptionalGradient]:
        do = aten.contiguous(do)
        _h, _dh = _chunk_states(aten, k, v, FLOAT32), _chunk_states(aten, k, v, FLOAT32)
        dq, dk = aten.new_like(q), aten.new_like(k)
        return dq, dk, aten.new_like(do), None

    with aten.graph.no_grad():
        log_decays = _retention_decays(aten, q)
        q_in, k_in, v_in = (aten.contiguous(x) for x in (q, k, v))
        scaled_decays = aten.new_like(log_decays)
        h = _chunk_states(aten, k_in, v_in, k.dtype)
        o = aten.new_like(v_in)
        del h
    saved_tensors = q_in, k_in, v_in, scaled_decays
    return record_function(aten, "ChunkSimpleGLAFunction", (q, k, v, log_decays), o, backward, saved_tensors)


def _retention_decays(aten: Aten, q: Tensor) -> Tensor:
    """Computes the log decay of each head (fla/ops/retention/chunk.py:92)."""
    exponents = aten.new_tensor((q.shape[2],), FLOAT32)
    exponents = aten.new_like(exponents)
    exponents = aten.new_like(exponents)
    return aten.new_like(exponents)


def chunk_gla(aten: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """Runs linear attention with a decay per key channel (fla/ops/gla/chunk.py, `ChunkGLAFunction`).

    q, k, g: [B, T, H, K]; v: [B, T, H, V]. Log decays g in float32 are saved as their sums, others as they are.
    """
    saves_sums = g.dtype == FLOAT32

    def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, a: Tensor) -> Sequence[OptionalGradient]:
        dq, dk, dv, dg = _gla_bwd(aten, q, k, v, g if saves_sums else None, aten.contiguous(do))
        return aten.to(dq, q.dtype), aten.to(dk, k.dtype), dv, aten.to(dg, g.dtype)

    with aten.graph.no_grad():
        q_in, k_in, v_in, g_in = (aten.contiguous(x) for x in (q, k, v, g))
        o, g_sum, a = _gla_fwd(aten, k_in, v_in, g_in)
    saved_tensors = q_in, k_in, v_in, g_sum if saves_sums else g_in, a
    return record_function(aten, "ChunkGLAFunction", (q, k, v, g), o, backward, saved_tensors)


def _gla_fwd(aten: Aten, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Runs the forward pass of chunked gated linear attention (fla/ops/gla/chunk.py, `chunk_gla_fwd`)."""
    g_sum = aten.new_like(g, dtype=FLOAT32)
    _h = _chunk_states(aten, k, v, k.dtype)
    a = _gla_scores(aten, k)
    return aten.new_like(v), g_sum, a


def _gla_scores(aten: Aten, k: Tensor) -> Tensor:
    """Computes each chunk's scores; heads above 256 are computed in parts of 128 channels, which are added."""
    a = aten.new_tensor((*k.shape[:3], CHUNK_TOKENS), FLOAT32)
    if k.shape[-1] > 256:
        _partial_scores = aten.new_tensor((ceil_div(k.shape[-1], 128), *k.shape[:3], 16), FLOAT32)
    return a


def _gla_bwd(
    aten: Aten, q: Tensor, k: Tensor, v: Tensor, g_sum: OptionalTensor, do: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Runs the backward pass of chunked gated linear attention (fla/ops/gla/chunk.py, `chunk_gla_bwd`).

    g_sum: the summed decays; None where the kernel computes them again.
    """
    g_sum = aten.new_like(k, dtype=FLOAT32) if g_sum is None else g_sum
    _h, _dh = _chunk_states(aten, k, v, FLOAT32), _chunk_states(aten, k, v, FLOAT32)
    dv = aten.new_like(do)
    _da = aten.new_tensor((*v.shape[:3], CHUNK_TOKENS), FLOAT32)
    dq, dk = aten.new_like(q, dtype=FLOAT32), aten.new_like(k, dtype=FLOAT32)
    dg = aten.new_like(g_sum)
    return aten.new_like(dq), aten.new_like(dk), dv, dg


def fused_recurrent_decay(aten: Aten, q: Tensor, k: Tensor, v: Tensor, g: OptionalTensor = None) -> Tensor:
    """Runs linear attention with a decay token by token in one kernel (fla/ops/common/fused_recurrent.py).

    q, k: [B, T, H, K]; v: [B, T, H, V]. g: the log decay per key channel, as q; by default that of retention.
    """

    def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, o: Tensor) -> Sequence[OptionalGradient]:
        _do = aten.contiguous(do)
        dq, dk, dv, dg = _recurrent_decay_bwd(aten, q, k, v, g if is_by_channel else None)
        return aten.to(dq, q.dtype), aten.to(dk, k.dtype), aten.to(dv, v.dtype), dg

    is_by_channel = g is not None
    with aten.graph.no_grad():
        g = _retention_decays(aten, q) if g is None else g
        q_in, k_in, v_in, g_in = (aten.contiguous(x) for x in (q, k, v, g))
        tile_outputs = aten.new_tensor((_tile_count(k), *v.shape), FLOAT32)
        o = aten.sum(tile_outputs, 0)
        del tile_outputs
        output = aten.to(o, q.dtype)
    saved_tensors = q_in, k_in, v_in, g_in, o
    return record_function(aten, "FusedRecurrentFunction", (q, k, v, g), output, backward, saved_tensors)


def _tile_count(x: Tensor) -> Number:
    """Returns the number of tiles into which a head is split; a tile has at most 64 channels."""
    return ceil_div(x.shape[-1], min(next_power_of_two(x.shape[-1]), 64))


def _recurrent_decay_bwd(
    aten: Aten, q: Tensor, k: Tensor, v: Tensor, g: OptionalTensor
) -> tuple[Tensor, Tensor, Tensor, OptionalTensor]:
    """Runs the backward pass of recurrent linear attention; the gradients of each tile are added."""
    dq, dk = (aten.new_tensor((_tile_count(v), *x.shape), FLOAT32) for x in (q, k))
    dv = aten.new_tensor((_tile_count(k), *v.shape), FLOAT32)
    dg = None if g is None else aten.new_tensor((_tile_count(v), *g.shape), FLOAT32)
    dq = aten.sum(dq, 0)
    dk = aten.sum(dk, 0)
    dv = aten.sum(dv, 0)
    if dg is not None and g is not None:
        dg = aten.to(aten.sum(dg, 0), g.dtype)
    return dq, dk, dv, dg


def rotary_embedding(aten: Aten, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates queries or keys (fla/modules/rotary.py, `RotaryEmbeddingFunction`). x: [B, T, H, K]; cos, sin: [T, K/2].

    The backward pass copies the gradient of the output.
    """

    def backward(dy: Tensor, cos: Tensor, sin: Tensor) -> Sequence[OptionalGradient]:
        _dy = aten.contiguous(dy)
        _copy = aten.new_like(_dy)
        return aten.new_like(_dy), None, None

    with aten.graph.no_grad():
        y = aten.new_like(aten.contiguous(x))
    return record_function(aten, "RotaryEmbeddingFunction", (x, cos, sin), y, backward, (cos, sin))


def rotary_tables(aten: Aten, token_count: Number, head_size: Number, template: Tensor) -> tuple[Tensor, Tensor]:
    """Computes the cosines and sines of every position (fla/modules/rotary.py, `_update_cos_sin_cache`)."""
    pair_count = exact_div(head_size, 2)
    with aten.graph.no_grad():
        _positions, inverse_frequencies = (
            aten.new_tensor((token_count,), FLOAT32),
            aten.new_tensor((pair_count,), FLOAT32),
        )
        for _ in range(4):
            inverse_frequencies = aten.new_like(inverse_frequencies)
        angles = aten.new_tensor((token_count, pair_count), FLOAT32)
        cos = aten.to(aten.elementwise_function("cos", angles), template.dtype)
        return cos, aten.to(aten.elementwise_function("sin", angles), template.dtype)


# --- Kimi delta attention --------------------------------------------------------------------------------------------


def _kda_fwd(
    aten: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, computes_gates_in_kernel: bool
) -> tuple[Tensor, ...]:
    """Runs the forward pass of chunked Kimi delta attention (fla/ops/kda/chunk.py:28 and chunk_fwd.py:20)."""
    heads, head_size = g.shape[2:]
    q, q_rstd = _l2norm_fwd(aten, q)
    k, k_rstd = _l2norm_fwd(aten, k)
    beta = aten.new_like(beta, dtype=FLOAT32) if computes_gates_in_kernel else beta
    g_sum = aten.new_like(g, dtype=FLOAT32)
    aqk, akk, _w, u, _kg = _kda_intra_fwd(aten, k, v, heads)
    _h, v_new = _fwd_h(aten, k, u, heads, head_size)
    o = aten.new_like(v_new)
    return o, q, q_rstd, k, k_rstd, beta, g_sum, aqk, akk


def _kda_intra_fwd(aten: Aten, k: Tensor, v: Tensor, heads: Number) -> tuple[Tensor, ...]:
    """Computes each chunk's query-key and key-key products and WY factors (fla/ops/kda/chunk_intra.py:794)."""
    row_shape = *k.shape[:2], heads
    aqk, akk = (
        aten.new_tensor((*row_shape, CHUNK_TOKENS), k.dtype),
        aten.new_tensor((*row_shape, CHUNK_TOKENS), k.dtype),
    )
    _diagonal = aten.new_tensor((*row_shape, 16), FLOAT32)
    return aqk, akk, *_kda_w_u(aten, k, v, heads)


def _kda_w_u(aten: Aten, k: Tensor, v: Tensor, heads: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the WY factors w and u and the decayed keys of each chunk (fla/ops/kda/wy_fast.py:264)."""
    key_shape = *k.shape[:2], heads, k.shape[3]
    w, u = aten.new_tensor(key_shape, k.dtype), aten.new_like(v)
    return w, u, aten.new_tensor(key_shape, k.dtype)


def _kda_bwd(
    aten: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    akk: Tensor,
    do: Tensor,
    g_sum: OptionalTensor,
    gate: tuple[Tensor, Tensor, Tensor] | None,
) -> tuple[Tensor, ...]:
    """Runs the backward pass of chunked Kimi delta attention (fla/ops/kda/chunk_bwd.py:435).

    g_sum: the summed decays; None where the kernel computes them again. gate: its input, A and bias, if the kernel
    computes it.
    """
    batch, token_count, heads, head_size = k.shape
    value_heads = v.shape[2]
    if g_sum is None:
        assert gate is not None
        g_sum = aten.new_like(gate[0], dtype=FLOAT32)
    _w, u, kg = _kda_w_u(aten, k, v, value_heads)
    _qg = aten.new_like(kg)
    _h, _v_new = _fwd_h(aten, k, u, value_heads, head_size)
    _daqk = aten.new_tensor((batch, token_count, value_heads, CHUNK_TOKENS), FLOAT32)
    dv = aten.new_like(do)
    _dh, dv = _bwd_dhu(aten, q, dv, value_heads, head_size)
    dq, dk, dv, db, dg, _dakk = _kda_fused(aten, v, g_sum, beta, akk)
    dq, dk, db, dg = _kda_intra_bwd(aten, dq, dk, beta, dg)
    if not are_equal(heads, value_heads):
        dq = _sum_value_heads(aten, dq, heads)
        dk = _sum_value_heads(aten, dk, heads)
    dg = aten.new_like(dg)
    return (dq, dk, dv, db, *((dg,) if gate is None else _gate_bwd(aten, *gate)))


def _kda_fused(aten: Aten, v: Tensor, g: Tensor, beta: Tensor, a: Tensor) -> tuple[Tensor, ...]:
    """Computes the gradients of q, k, v, β, decays and chunk matrices in one kernel (fla/ops/kda/chunk_bwd.py:368)."""
    dq, dk = aten.new_tensor(g.shape, FLOAT32), aten.new_tensor(g.shape, FLOAT32)
    dv, dg = aten.new_like(v), aten.new_like(g, dtype=FLOAT32)
    db = aten.new_like(beta, dtype=FLOAT32)
    return dq, dk, dv, db, dg, aten.new_like(a, dtype=FLOAT32)


def _kda_intra_bwd(aten: Aten, dq: Tensor, dk: Tensor, beta: Tensor, dg: Tensor) -> tuple[Tensor, ...]:
    """Adds gradients from inside each chunk to the gradients of q, k, β and decays (fla/ops/kda/chunk_intra.py:897)."""
    head_size = dq.shape[-1]
    dq, dk = aten.new_like(dq), aten.new_like(dk)
    db = aten.new_tensor((ceil_div(head_size, min(32, next_power_of_two(head_size))), *beta.shape), FLOAT32)
    dg = aten.new_like(dg)
    return dq, dk, aten.sum(db, 0), dg


def chunk_kda(
    aten: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    a_log: OptionalTensor = None,
    dt_bias: OptionalTensor = None,
) -> Tensor:
    """Runs chunked Kimi delta attention with L2 norms of q and k (fla/ops/kda/chunk.py:24, `ChunkKDAFunction`).

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g: [B, T, HV, K]; beta: [B, T, HV]. With a_log, [HV], and dt_bias, [HV · K],
    the kernel applies the activations of g and beta; without them g is the log decay and beta follows its sigmoid. A
    lower bound of the gate makes no difference.
    """

    def backward(do: Tensor, *saved_tensors: Any) -> Sequence[OptionalGradient]:
        q, _, k, _, v, g_sum, g_input, beta_raw, beta, a_log, dt_bias, _, akk = saved_tensors
        do = aten.contiguous(do)
        gate = None if a_log is None or dt_bias is None else (g_input, a_log, dt_bias)
        dq, dk, dv, db, dg, *gate_gradients = _kda_bwd(aten, q, k, v, beta, akk, do, g_sum, gate)
        dq = aten.new_like(q)
        dk = aten.new_like(k)
        db = aten.new_like(beta_raw) if gate is not None else db
        return dq, dk, dv, aten.to(dg, g_input.dtype), aten.to(db, beta_raw.dtype), *(gate_gradients or (None, None))

    computes_gates_in_kernel = a_log is not None
    with aten.graph.no_grad():
        dense_inputs = [aten.contiguous(x) for x in (q, k, v, g, beta)]
        o, q_unit, q_rstd, k_unit, k_rstd, beta_sigmoid, g_sum, aqk, akk = _kda_fwd(
            aten, *dense_inputs, computes_gates_in_kernel=computes_gates_in_kernel
        )
        saved_g_sum = None if computes_gates_in_kernel else g_sum
        del g_sum
    saved_inputs = saved_g_sum, dense_inputs[3], dense_inputs[4], beta_sigmoid, a_log, dt_bias, aqk, akk
    saved_tensors = q_unit, q_rstd, k_unit, k_rstd, dense_inputs[2], *saved_inputs
    return record_function(aten, "ChunkKDAFunction", (q, k, v, g, beta, a_log, dt_bias), o, backward, saved_tensors)
