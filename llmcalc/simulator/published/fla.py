"""Linear attention of flash-linear-attention: chunked Triton kernels.

Source: fla-org/flash-linear-attention at bc3b101d, fla/ops and fla/modules. Each function allocates in the order of its
source, and its local variables stand for those of its source; one whose name begins with an underscore is only held,
until its function returns. No further package (tilelang, FlashQLA) replaces the Triton kernels.

B: sequences, T: tokens, H: heads of queries and keys, HV: heads of values, K, V: the sizes of a head.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...algebra import Number, ceil_div, exact_div, minimum, same
from ..aten import Aten
from ..tensor import FLOAT32, Gradient, Tensor
from .function import H100, Accelerator, Optional, power_of_two, record_function

CHUNK = 64
"""The tokens that a kernel computes at once."""

HOPPER, ADA = 232448, 101376
"""The shared memory per block from which fla takes larger tiles (fla/utils/_accelerator.py:196)."""


def tile(size: Number, accelerator: Accelerator) -> int:
    """Returns the tile width of a head (fla/ops/common/chunk_o.py:730)."""
    widest_tile = 128 if accelerator.shared_memory >= HOPPER else 64 if accelerator.shared_memory >= ADA else 32
    return min(max(power_of_two(size), 16), widest_tile)


# --- the short convolution -------------------------------------------------------------------------------------------


def causal_conv1d(t: Aten, x: Tensor, weight: Tensor, bias: Optional = None, has_activation: bool = True) -> Tensor:
    """Runs fla/modules/conv/triton/ops.py:357 (`CausalConv1dFunction`). x: [B, T, channels]; weight: [channels, width].

    has_activation: whether SiLU follows, inside the kernel.
    """
    graph = t.graph

    def backward(dy: Tensor, x: Tensor, weight: Tensor, bias: Optional) -> Sequence[Gradient]:
        chunks = x.shape[0] * ceil_div(x.shape[1], CHUNK)
        _y = t.new(x.shape, x.dtype) if has_activation else None
        dx = t.like(x)
        dw = t.new((chunks, *weight.shape), FLOAT32)
        db = None if bias is None else t.new((chunks, *bias.shape), FLOAT32)
        dw = t.to(t.sum(dw, 0), weight.dtype)
        if db is not None and bias is not None:
            db = t.to(t.sum(db, 0), bias.dtype)
        return dx, dw, db

    with graph.no_grad():
        dense_weight = t.contiguous(weight)
        y = t.new(x.shape, x.dtype)
    return record_function(graph, "CausalConv1dFunction", (x, weight, bias), y, backward, (x, dense_weight, bias))


# --- norms -----------------------------------------------------------------------------------------------------------


def rms_norm_gated(t: Aten, x: Tensor, g: Tensor, weight: Tensor, accelerator: Accelerator = H100) -> Tensor:
    """Runs fla/modules/fused_norm_gate.py:649 (`LayerNormGatedFunction`, is_rms_norm): norm(x) · activation(g)."""
    return layer_norm_gated(t, x, g, weight, None, accelerator)


def layer_norm_gated(
    t: Aten, x: Tensor, g: Tensor, weight: Tensor, bias: Optional, accelerator: Accelerator = H100
) -> Tensor:
    """Runs `LayerNormGatedFunction` with a LayerNorm, which also saves row means. bias: None for an RMSNorm."""
    graph, shape = t.graph, x.shape

    def rows(x: Tensor) -> Tensor:
        return t.flatten(x, 0, -2)

    def backward(
        dy: Tensor, x: Tensor, g: Tensor, weight: Tensor, bias: Optional, mean: Optional, rstd: Tensor
    ) -> Sequence[Gradient]:
        dy = t.contiguous(dy)
        dx, dg = t.new(x.shape, x.dtype), t.new(x.shape, x.dtype)
        partial = minimum(accelerator.multiprocessors, x.shape[0]), x.shape[1]
        dw = t.new(partial, FLOAT32)
        db = None if bias is None else t.new(partial, FLOAT32)
        dw = t.to(t.sum(dw, 0), weight.dtype)
        if db is not None and bias is not None:
            db = t.to(t.sum(db, 0), bias.dtype)
        return t.reshape(dx, shape), t.reshape(dg, shape), dw, db

    with graph.no_grad():
        flat_x, gate = rows(t.contiguous(x)), rows(t.contiguous(g))
        y = t.like(flat_x)
        mean = None if bias is None else t.new((flat_x.shape[0],), FLOAT32)
        rstd = t.new((flat_x.shape[0],), FLOAT32)
        y = t.reshape(y, shape)
    saves = flat_x, gate, weight, bias, mean, rstd
    return record_function(graph, "LayerNormGatedFunction", (x, g, weight, bias), y, backward, saves)


def _l2norm_fwd(t: Aten, x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales x to length 1, and returns 1 / its length (fla/modules/l2norm.py:148)."""
    return t.like(x), t.new(x.shape[:-1], FLOAT32)


# --- what the delta rules share --------------------------------------------------------------------------------------


def _fwd_h(t: Aten, k: Tensor, u: Tensor, heads: Number, size: Number) -> tuple[Tensor, Tensor]:
    """Computes the state before each chunk, and the corrected values (fla/ops/common/chunk_delta_h.py:687)."""
    batch, tokens = k.shape[:2]
    h = t.new((batch, ceil_div(tokens, CHUNK), heads, u.shape[-1], size), k.dtype)
    return h, t.like(u)


def _bwd_dhu(t: Aten, q: Tensor, dv: Tensor, heads: Number, size: Number) -> tuple[Tensor, Tensor]:
    """Computes the gradients of the states and of the corrected values (fla/ops/common/chunk_delta_h.py:747)."""
    batch, tokens = q.shape[:2]
    dh = t.new((batch, ceil_div(tokens, CHUNK), heads, dv.shape[-1], size), q.dtype)
    return dh, t.like(dv)


def _by_group(t: Aten, x: Tensor, heads: Number) -> Tensor:
    """Sums gradients over the value heads of a key head: x.view(B, T, H, HV // H, K).sum(3)."""
    return t.sum(t.unflatten(x, 2, (heads, exact_div(x.shape[2], heads))), 3)


def _gate_bwd(t: Aten, g: Tensor, a_log: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Runs fla/ops/gated_delta_rule/gate.py:197, fla/ops/kda/gate.py:280: the gradients of the gate, A and the bias."""
    rows = g.shape[0] * g.shape[1]
    dg = t.like(g, dtype=FLOAT32)
    da = t.new((ceil_div(rows, 32), *a_log.shape), FLOAT32)
    dg = t.to(dg, g.dtype)
    da = t.to(t.sum(da, 0), a_log.dtype)
    dbias = t.to(t.sum(t.reshape(dg, (rows, dt_bias.shape[0])), 0), dt_bias.dtype)
    return dg, da, dbias


def fused_recurrent(t: Aten, v: Tensor) -> Tensor:
    """Runs one kernel over all tokens, without gradients. v: [B, T, HV, V], dense, as queries, keys and gates are.

    Source: fla/ops/gated_delta_rule/fused_recurrent.py:181, fla/ops/kda/fused_recurrent.py.
    """
    return t.like(v)


FEW = 64
"""The tokens up to which the layers of delta rules run `fused_recurrent` without gradients (fla/layers)."""

# --- the gated delta rule --------------------------------------------------------------------------------------------


def _gdn_fwd(t: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Runs fla/ops/gated_delta_rule/chunk.py:256 and :30 (`chunk_gated_delta_rule_fwd`)."""
    q, q_rstd = _l2norm_fwd(t, q)
    k, k_rstd = _l2norm_fwd(t, k)
    beta = t.like(beta, dtype=FLOAT32)
    o, g, a = _gdn_chunks(t, k, v, g)
    return o, q, q_rstd, k, k_rstd, g, beta, a


def _gdn_chunks(t: Aten, k: Tensor, v: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the output, the summed decays, and the inverse of each chunk."""
    batch, tokens, _, size = k.shape
    heads = v.shape[2]
    g = t.like(g, dtype=FLOAT32)
    a = t.new((batch, tokens, heads, CHUNK), k.dtype)
    _w, u = t.new((batch, tokens, heads, size), k.dtype), t.like(v)
    _h, v_new = _fwd_h(t, k, u, heads, size)
    return t.like(v_new), g, a


def _gdn_bwd(
    t: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    do: Tensor,
    gate: tuple[Tensor, Tensor, Tensor] | None,
    accelerator: Accelerator,
) -> tuple[Tensor, ...]:
    """Runs `chunk_gated_delta_rule_bwd` of fla/ops/gated_delta_rule/chunk.py:117.

    gate: its input, A and bias, if the kernel computes it.
    """
    heads, size = v.shape[2], k.shape[3]
    w, u = t.new((*k.shape[:2], heads, size), k.dtype), t.like(v)
    _h, _v_new = _fwd_h(t, k, u, heads, size)
    dv = t.like(do)
    _dh, dv = _bwd_dhu(t, q, dv, heads, size)
    dq, dk, _dw, dg = _dqkwg(t, q, k, g, w, accelerator)
    _dk2, dv, db, _dg2 = _wy_bwd(t, k, v, g, beta)
    dg = t.like(dg)
    return (dq, dk, dv, db, *((dg,) if gate is None else _gate_bwd(t, *gate)))


def _dqkwg(t: Aten, q: Tensor, k: Tensor, g: Tensor, w: Tensor, accelerator: Accelerator) -> tuple[Tensor, ...]:
    """Runs fla/ops/common/chunk_o.py:700 (`chunk_bwd_dqkwg`)."""
    heads, size = k.shape[2:]
    dq, dk = t.new(w.shape, q.dtype), t.new(w.shape, k.dtype)
    dg = t.new((ceil_div(size, tile(size, accelerator)), *g.shape), FLOAT32)
    dw = t.like(w)
    if not same(heads, w.shape[2]):
        dq = _by_group(t, dq, heads)
        dk = _by_group(t, dk, heads)
    dg = t.sum(dg, 0)
    return dq, dk, dw, dg


def _wy_bwd(t: Aten, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Runs fla/ops/gated_delta_rule/wy_fast.py:298 (`prepare_wy_repr_bwd`)."""
    batch, tokens, heads, size = k.shape
    dk, dv = t.new((batch, tokens, v.shape[2], size), k.dtype), t.like(v)
    dg, db = t.like(g), t.like(beta)
    if not same(heads, v.shape[2]):
        dk = _by_group(t, dk, heads)
    return dk, dv, db, dg


def chunk_gated_delta_rule(
    t: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
    accelerator: Accelerator = H100,
) -> Tensor:
    """Runs fla/ops/gated_delta_rule/chunk.py:253 (`ChunkGatedDeltaRuleFunction`): L2 norms, gate and sigmoid inside.

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g, beta: [B, T, HV], before their activations; a_log, dt_bias: [HV].
    """
    graph = t.graph

    def backward(
        do: Tensor,
        q: Tensor,
        q_rstd: Tensor,
        k: Tensor,
        k_rstd: Tensor,
        v: Tensor,
        g: Tensor,
        beta_raw: Tensor,
        beta: Tensor,
        a: Tensor,
        g_input: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
    ) -> Sequence[Gradient]:
        do = t.contiguous(do)
        gate = g_input, a_log, dt_bias
        dq, dk, dv, db, dg, da, dbias = _gdn_bwd(t, q, k, v, g, beta, do, gate, accelerator)
        dq = t.like(q)
        dk = t.like(k)
        db = t.like(beta_raw)
        return dq, dk, dv, t.to(dg, g.dtype), db, da, dbias

    with graph.no_grad():
        dense_inputs = [t.contiguous(x) for x in (q, k, v, g, beta)]
        o, q_unit, q_rstd, k_unit, k_rstd, g_sum, beta_open, a = _gdn_fwd(t, *dense_inputs)
    saves = (
        q_unit,
        q_rstd,
        k_unit,
        k_rstd,
        dense_inputs[2],
        g_sum,
        dense_inputs[4],
        beta_open,
        a,
        dense_inputs[3],
        a_log,
        dt_bias,
    )
    return record_function(graph, "ChunkGatedDeltaRuleFunction", (q, k, v, g, beta, a_log, dt_bias), o, backward, saves)


def chunk_gated_delta_rule_alone(
    t: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, accelerator: Accelerator = H100
) -> Tensor:
    """Runs the chunked gated delta rule without norms, gate and sigmoid, which the caller computes.

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g, in fp32, and beta: [B, T, HV].
    """
    graph = t.graph

    def backward(do: Tensor, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, a: Tensor) -> Sequence[Gradient]:
        dq, dk, dv, db, dg = _gdn_bwd(t, q, k, v, g, beta, t.contiguous(do), None, accelerator)
        return t.to(dq, q.dtype), t.to(dk, k.dtype), t.to(dv, v.dtype), dg, t.to(db, beta.dtype)

    with graph.no_grad():
        q_in, k_in, v_in, g_in, beta_in = (t.contiguous(x) for x in (q, k, v, g, beta))
        o, g_sum, a = _gdn_chunks(t, k_in, v_in, g_in)
    saves = q_in, k_in, v_in, g_sum, beta_in, a
    return record_function(graph, "ChunkGatedDeltaRuleFunction", (q, k, v, g, beta), o, backward, saves)


def l2norm(t: Aten, x: Tensor) -> Tensor:
    """Runs fla/modules/l2norm.py (`L2NormFunction`), which keeps its result and 1 / the length of each row."""
    graph = t.graph

    def backward(dy: Tensor, y: Tensor, rstd: Tensor) -> Sequence[Gradient]:
        _dense_gradient = t.contiguous(dy)
        return (t.like(y),)

    with graph.no_grad():
        y, rstd = _l2norm_fwd(t, t.contiguous(x))
    return record_function(graph, "L2NormFunction", (x,), y, backward, (y, rstd))


# --- Kimi delta attention --------------------------------------------------------------------------------------------


def _kda_fwd(t: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> tuple[Tensor, ...]:
    """Runs fla/ops/kda/chunk.py:28 and chunk_fwd.py:20 (`chunk_kda_fwd`)."""
    heads, size = g.shape[2:]
    q, q_rstd = _l2norm_fwd(t, q)
    k, k_rstd = _l2norm_fwd(t, k)
    beta = t.like(beta, dtype=FLOAT32)
    _g = t.like(g, dtype=FLOAT32)
    aqk, akk, _w, u, _kg = _kda_intra_fwd(t, k, v, heads)
    _h, v_new = _fwd_h(t, k, u, heads, size)
    o = t.like(v_new)
    return o, q, q_rstd, k, k_rstd, beta, aqk, akk


def _kda_intra_fwd(t: Aten, k: Tensor, v: Tensor, heads: Number) -> tuple[Tensor, ...]:
    """Runs fla/ops/kda/chunk_intra.py:794 (`chunk_kda_fwd_intra`)."""
    rows = *k.shape[:2], heads
    aqk, akk = t.new((*rows, CHUNK), k.dtype), t.new((*rows, CHUNK), k.dtype)
    _diagonal = t.new((*rows, 16), FLOAT32)
    return aqk, akk, *_kda_w_u(t, k, v, heads)


def _kda_w_u(t: Aten, k: Tensor, v: Tensor, heads: Number) -> tuple[Tensor, Tensor, Tensor]:
    """Runs fla/ops/kda/wy_fast.py:264 (`recompute_w_u_fwd`)."""
    keys = *k.shape[:2], heads, k.shape[3]
    w, u = t.new(keys, k.dtype), t.like(v)
    return w, u, t.new(keys, k.dtype)


def _kda_bwd(
    t: Aten,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    akk: Tensor,
    do: Tensor,
    g_org: Tensor,
    a_log: Tensor,
    dt_bias: Tensor,
) -> tuple[Tensor, ...]:
    """Runs fla/ops/kda/chunk_bwd.py:435 (`chunk_kda_bwd`)."""
    batch, tokens, heads, size = k.shape
    value_heads = v.shape[2]
    g = t.like(g_org, dtype=FLOAT32)
    _w, u, kg = _kda_w_u(t, k, v, value_heads)
    _qg = t.like(kg)
    _h, _v_new = _fwd_h(t, k, u, value_heads, size)
    _daqk = t.new((batch, tokens, value_heads, CHUNK), FLOAT32)
    dv = t.like(do)
    _dh, dv = _bwd_dhu(t, q, dv, value_heads, size)
    dq, dk, dv, db, dg, _dakk = _kda_fused(t, v, g, beta, akk)
    dq, dk, db, dg = _kda_intra_bwd(t, dq, dk, beta, dg)
    if not same(heads, value_heads):
        dq = _by_group(t, dq, heads)
        dk = _by_group(t, dk, heads)
    dg = t.like(dg)
    dg, da, dbias = _gate_bwd(t, g_org, a_log, dt_bias)
    return dq, dk, dv, db, dg, da, dbias


def _kda_fused(t: Aten, v: Tensor, g: Tensor, beta: Tensor, a: Tensor) -> tuple[Tensor, ...]:
    """Runs fla/ops/kda/chunk_bwd.py:368 (`chunk_kda_bwd_wy_dqkg_fused`)."""
    dq, dk = t.new(g.shape, FLOAT32), t.new(g.shape, FLOAT32)
    dv, dg = t.like(v), t.like(g, dtype=FLOAT32)
    db = t.like(beta, dtype=FLOAT32)
    return dq, dk, dv, db, dg, t.like(a, dtype=FLOAT32)


def _kda_intra_bwd(t: Aten, dq: Tensor, dk: Tensor, beta: Tensor, dg: Tensor) -> tuple[Tensor, ...]:
    """Runs fla/ops/kda/chunk_intra.py:897 (`chunk_kda_bwd_intra`)."""
    size = dq.shape[-1]
    dq, dk = t.like(dq), t.like(dk)
    db = t.new((ceil_div(size, min(32, power_of_two(size))), *beta.shape), FLOAT32)
    dg = t.like(dg)
    return dq, dk, t.sum(db, 0), dg


def chunk_kda(
    t: Aten, q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, a_log: Tensor, dt_bias: Tensor
) -> Tensor:
    """Runs fla/ops/kda/chunk.py:24 (`ChunkKDAFunction`): L2 norms, gate and sigmoid inside.

    q, k: [B, T, H, K]; v: [B, T, HV, V]; g: [B, T, HV, K] and beta: [B, T, HV], before their activations; a_log: [HV];
    dt_bias: [HV · K]. A lower bound of the gate makes no difference.
    """
    graph = t.graph

    def backward(
        do: Tensor,
        q: Tensor,
        q_rstd: Tensor,
        k: Tensor,
        k_rstd: Tensor,
        v: Tensor,
        g_input: Tensor,
        beta_raw: Tensor,
        beta: Tensor,
        a_log: Tensor,
        dt_bias: Tensor,
        aqk: Tensor,
        akk: Tensor,
    ) -> Sequence[Gradient]:
        do = t.contiguous(do)
        dq, dk, dv, db, dg, da, dbias = _kda_bwd(t, q, k, v, beta, akk, do, g_input, a_log, dt_bias)
        dq = t.like(q)
        dk = t.like(k)
        db = t.like(beta_raw)
        return dq, dk, dv, dg, db, da, dbias

    with graph.no_grad():
        dense_inputs = [t.contiguous(x) for x in (q, k, v, g, beta)]
        o, q_unit, q_rstd, k_unit, k_rstd, beta_open, aqk, akk = _kda_fwd(t, *dense_inputs)
    saved_inputs = dense_inputs[3], dense_inputs[4], beta_open, a_log, dt_bias, aqk, akk
    saves = q_unit, q_rstd, k_unit, k_rstd, dense_inputs[2], *saved_inputs
    return record_function(graph, "ChunkKDAFunction", (q, k, v, g, beta, a_log, dt_bias), o, backward, saves)
