"""Mamba and Mamba-2 by the training kernels of mamba_ssm.

Source: state-spaces/mamba at e9594ce1: mamba_ssm/ops/selective_scan_interface.py, csrc/selective_scan/
selective_scan.cpp, mamba_ssm/ops/triton/ssd_*.py and layernorm_gated.py. Each function allocates in the order of its
source, and its local variables stand for those of its source; one whose name begins with an underscore is only held,
until its function returns. Deterministic algorithms are off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...algebra import Number, ceil_div, exact_div, minimum
from ..aten import Aten
from ..strides import is_size_one
from ..tensor import FLOAT32, Dtype, Gradient, Tensor
from .causal_conv1d import causal_conv1d_bwd, causal_conv1d_fwd
from .function import H100, Accelerator, Optional, power_of_two, record_function

CHUNK = 2048
"""The tokens between two states that the selective scan keeps."""

STATES = 7
"""Where those states are among the tensors that the selective scan saves."""


# --- orders of axes --------------------------------------------------------------------------------------------------


def split_halves(t: Aten, x: Tensor) -> list[Tensor]:
    """Splits axis 1 in two: x.chunk(2, dim=1)."""
    half_width = exact_div(x.shape[1], 2)
    return t.split(x, [half_width, half_width], 1)


def tokens_first(t: Aten, x: Tensor) -> Tensor:
    """Reorders [batch, channels, tokens] → [batch · tokens, channels]."""
    return t.flatten(t.transpose(x, 1, 2), 0, 1)


def channels_first(t: Aten, x: Tensor) -> Tensor:
    """Reorders [batch, channels, tokens] → [channels, batch · tokens]."""
    return t.flatten(t.transpose(x, 0, 1), 1, 2)


def split_tokens(t: Aten, x: Tensor, batch: Number) -> Tensor:
    """Reorders [channels, batch · tokens] → [batch, channels, tokens]."""
    return t.transpose(t.unflatten(x, 1, (batch, exact_div(x.shape[1], batch))), 0, 1)


# --- the selective scan of Mamba -------------------------------------------------------------------------------------


def _scan_fwd(t: Aten, u: Tensor, delta: Tensor, a: Tensor, z: Optional) -> tuple[Tensor, Tensor, Optional]:
    """Runs the selective scan's forward kernel (selective_scan.cpp:227).

    Returns the output, the states between chunks with their products, and the gated output.
    """
    out_z = None if z is None else t.like(z)
    out = t.like(delta)
    states = t.new((u.shape[0], u.shape[1], ceil_div(u.shape[2], CHUNK), a.shape[1] * 2), a.dtype)
    return out, states, out_z


def _scan_bwd(
    t: Aten,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    z: Optional,
    delta_bias: Tensor,
    out: Optional,
    dz: Optional = None,
    recompute_out_z: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Optional, Optional]:
    """Runs the selective scan's backward kernel (selective_scan.cpp:338).

    Returns the gradients of u, Δ, A, B, C, D, the bias of Δ and z, and the gated output again.
    """
    if z is not None and dz is None:
        dz = t.like(z)
    out_z = t.like(out) if out is not None and z is not None and recompute_out_z else None
    du, ddelta, da = t.like(u), t.like(delta), t.like(a)
    db, dc = t.like(b, dtype=FLOAT32), t.like(c, dtype=FLOAT32)
    dd, dbias = t.like(d), t.like(delta_bias)
    return du, ddelta, da, t.to(db, b.dtype), t.to(dc, c.dtype), dd, dbias, dz, out_z


def selective_scan_fn(t: Aten, *xs: Any) -> Tensor:
    """Runs `selective_scan_with_states` and returns the output without the states."""
    return selective_scan_with_states(t, *xs)[0]


def selective_scan_with_states(
    t: Aten,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    z: Optional,
    delta_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Runs the selective scan of selective_scan_interface.py:38.

    u, delta, z: [batch, inner, tokens]; b, c: [batch, state, tokens] or with an axis of groups before `state`;
    a: [inner, state]; d, delta_bias: [inner] in float32.

    Returns the output, and the states between chunks, of which the last one is a view.
    """
    graph, has_groups = t.graph, len(b.shape) == 4

    def forward(u: Tensor, delta: Tensor, b: Tensor, c: Tensor, z: Optional) -> tuple[Optional, ...]:
        u, delta, b, c = (_contiguous_along(t, x, -1) for x in (u, delta, b, c))
        z = None if z is None else _contiguous_along(t, z, -1)
        if not has_groups:
            b, c = t.unsqueeze(b, 1), t.unsqueeze(c, 1)
        out, states, out_z = _scan_fwd(t, u, delta, a, z)
        if z is None:
            return out, u, delta, a, b, c, d, delta_bias, states, None, None
        return out_z, u, delta, a, b, c, d, delta_bias, states, z, out

    def backward(
        dout: Tensor,
        u: Tensor,
        delta: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        delta_bias: Tensor,
        states: Tensor,
        z: Optional,
        out: Optional,
    ) -> Sequence[Gradient]:
        if not is_size_one(dout.strides[-1]):
            dout = t.contiguous(dout)
        du, ddelta, da, db, dc, dd, dbias, dz, _ = _scan_bwd(t, u, delta, a, b, c, d, z, delta_bias, out)
        if not has_groups:
            db, dc = t.select(db, 1), t.select(dc, 1)
        return du, ddelta, da, db, dc, dd, dz, dbias

    with graph.no_grad():
        result, *saves = forward(u, delta, b, c, z)
    assert result is not None
    states = saves[STATES]
    assert states is not None
    out = record_function(graph, "SelectiveScanFn", (u, delta, a, b, c, d, z, delta_bias), result, backward, saves)
    return out, states


def _delta_of(t: Aten, x_dbl: Tensor, weight: Tensor, batch: Number) -> Tensor:
    """Computes `rearrange(delta_proj_weight @ x_dbl[:, :delta_rank].t(), "d (b l) -> b d l")`."""
    return split_tokens(t, t.mm(weight, t.transpose(t.slice(x_dbl, weight.shape[1]), 0, 1)), batch)


def _dense_of(t: Aten, x_dbl: Tensor, state: Number, batch: Number) -> Tensor:
    """Computes `rearrange(x_dbl[:, …], "(b l) dstate -> b 1 dstate l").contiguous()`."""
    dense_state = t.unflatten(t.slice(x_dbl, state), 0, (batch, exact_div(x_dbl.shape[0], batch)))
    return t.contiguous(t.transpose(t.unsqueeze(dense_state, 1), 2, 3))


def mamba_inner_fn(
    t: Aten,
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Optional,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    a: Tensor,
    d: Tensor,
    delta_bias: Tensor,
) -> Tensor:
    """Runs selective_scan_interface.py:183 (`MambaInnerFn`, checkpoint_lvl 1): convolution, projections, scan and gate.

    xz: [batch, 2 · inner, tokens]. The convolution and Δ are computed again in the backward pass.
    There is no bias of the output projection: the library's gradient of one has no shape, and autograd refuses it.
    """
    graph, rank, state = t.graph, delta_proj_weight.shape[1], a.shape[-1]

    def forward(xz: Tensor) -> tuple[Tensor, ...]:
        if not is_size_one(xz.strides[-1]):
            xz = t.contiguous(xz)
        batch = xz.shape[0]
        x, z = split_halves(t, xz)
        conv1d_out: Optional = causal_conv1d_fwd(t, x)
        assert conv1d_out is not None
        x_dbl = t.linear(tokens_first(t, conv1d_out), x_proj_weight)
        delta: Optional = _delta_of(t, x_dbl, delta_proj_weight, batch)
        assert delta is not None
        b, c = _dense_of(t, x_dbl, state, batch), _dense_of(t, x_dbl, state, batch)
        out, states, out_z = _scan_fwd(t, conv1d_out, delta, a, z)
        conv1d_out = delta = None
        assert out_z is not None
        y = t.linear(t.transpose(out_z, 1, 2), out_proj_weight)
        return y, xz, x_dbl, b, c, states, out

    def backward(
        dout: Tensor,
        xz: Tensor,
        conv1d_weight: Tensor,
        conv1d_bias: Optional,
        x_dbl: Tensor,
        x_proj_weight: Tensor,
        delta_proj_weight: Tensor,
        out_proj_weight: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        delta_bias: Tensor,
        states: Tensor,
        out: Tensor,
    ) -> Sequence[Gradient]:
        batch = xz.shape[0]
        x, z = split_halves(t, xz)
        dout = _contiguous_along(t, dout, -1)
        conv1d_out = causal_conv1d_fwd(t, x)
        delta = _delta_of(t, x_dbl, delta_proj_weight, batch)
        dxz = t.like(xz)
        dx, dz = split_halves(t, dxz)
        dout = t.reshape(t.transpose(t.transpose(dout, 1, 2), 0, 1), (dout.shape[2], dout.shape[0] * dout.shape[1]))
        _dout_y = split_tokens(t, t.mm(t.transpose(out_proj_weight, 0, 1), dout), batch)
        dconv1d_out, ddelta, da, db, dc, dd, dbias, _, out_z = _scan_bwd(
            t, conv1d_out, delta, a, b, c, d, z, delta_bias, out, dz, True
        )
        assert out_z is not None
        flat_output = channels_first(t, out_z)
        dout_proj_weight = t.new(out_proj_weight.shape, dout.dtype)
        del flat_output
        dx_dbl = t.like(x_dbl)
        db = t.contiguous(tokens_first(t, t.select(db, 1)))
        del db  # copied into dx_dbl
        dc = t.contiguous(tokens_first(t, t.select(dc, 1)))
        del dc
        ddelta = channels_first(t, ddelta)
        ddelta_proj_weight = t.new(delta_proj_weight.shape, ddelta.dtype)
        t.new((x_dbl.shape[0], rank), ddelta.dtype)  # einsum("dB,dr->Br"), copied into dx_dbl
        dconv1d_out = channels_first(t, dconv1d_out)
        flat_output = tokens_first(t, conv1d_out)
        dx_proj_weight = t.new(x_proj_weight.shape, dx_dbl.dtype)
        del flat_output
        dconv1d_out = split_tokens(t, dconv1d_out, batch)
        dx, dconv1d_weight, dconv1d_bias = causal_conv1d_bwd(t, x, conv1d_weight, conv1d_bias, dconv1d_out, dx)
        return (
            dxz,
            dconv1d_weight,
            dconv1d_bias,
            dx_proj_weight,
            ddelta_proj_weight,
            dout_proj_weight,
            da,
            dd,
            dbias,
        )

    with graph.no_grad():
        y, dense_inputs, x_dbl, b, c, states, out = forward(xz)
    weights = conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight
    saves = dense_inputs, conv1d_weight, conv1d_bias, x_dbl, x_proj_weight, delta_proj_weight, out_proj_weight
    return record_function(
        graph,
        "MambaInnerFn",
        (xz, *weights, a, d, delta_bias),
        y,
        backward,
        (*saves, a, b, c, d, delta_bias, states, out),
    )


# --- the chunked scan of Mamba-2 -------------------------------------------------------------------------------------


def _chunk_cumsum_fwd(t: Aten, dt: Tensor, chunk: Number) -> tuple[Tensor, Tensor]:
    """Computes the sums of log decays, and Δ, of every chunk (ssd_chunk_state.py:718)."""
    batch, tokens, heads = dt.shape
    shape = batch, heads, ceil_div(tokens, chunk), chunk
    dt_out = t.new(shape, FLOAT32)
    return t.new(shape, FLOAT32), dt_out


def _chunk_state_fwd(t: Aten, b: Tensor, x: Tensor, dt: Tensor) -> Tensor:
    """Computes the state that each chunk adds, in float32 (ssd_chunk_state.py:812)."""
    batch, _, heads, dim = x.shape
    return t.new((batch, dt.shape[2], heads, dim, b.shape[-1]), FLOAT32)


def _state_passing_fwd(t: Aten, states: Tensor, dtype: Dtype | None = None) -> tuple[Tensor, Tensor]:
    """Computes the state before each chunk, and the last one (ssd_state_passing.py:196)."""
    batch, _, heads, *state_shape = states.shape
    out = t.new(states.shape, states.dtype if dtype is None else dtype)
    return out, t.new((batch, heads, *state_shape), FLOAT32)


def _bmm_chunk_fwd(t: Aten, c: Tensor, chunk: Number) -> Tensor:
    """Computes C·Bᵀ of every chunk and group, in float32 (ssd_bmm.py:165)."""
    batch, tokens, groups, _ = c.shape
    return t.new((batch, ceil_div(tokens, chunk), groups, chunk, chunk), FLOAT32)


def _combined_fwd(
    t: Aten, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, chunk: Number, z: Optional
) -> tuple[Tensor, Optional, Tensor, Tensor, Tensor, Tensor]:
    """Runs `_mamba_chunk_scan_combined_fwd` of ssd_combined.py:338.

    Returns the gated output and the output before the gate (the same without a gate), Δ, the sums of log decays, the
    states and the last state.
    """
    b, c = _contiguous_along(t, b, -1), _contiguous_along(t, c, -1)
    x = x if is_size_one(x.strides[-1]) or is_size_one(x.strides[1]) else t.contiguous(x)
    if z is not None and not is_size_one(z.strides[-1]) and not is_size_one(z.strides[1]):
        z = t.contiguous(z)
    da_cumsum, dt = _chunk_cumsum_fwd(t, dt, chunk)
    states = _chunk_state_fwd(t, b, x, dt)
    states, final = _state_passing_fwd(t, states, c.dtype)
    _cb = _bmm_chunk_fwd(t, c, chunk)
    out = t.new(x.shape, x.dtype)
    out_x = None if z is None else t.new(x.shape, x.dtype)
    return out, out_x, dt, da_cumsum, states, final


def _contiguous_along(t: Aten, x: Tensor, axis: int) -> Tensor:
    """Copies a tensor unless an axis is contiguous."""
    return x if is_size_one(x.strides[axis]) else t.contiguous(x)


def by_size(t: Aten, size: Number, x: Tensor) -> Tensor:
    """Splits the last axis into heads: rearrange(x, "... (h d) -> ... h d")."""
    return t.unflatten(x, -1, (exact_div(x.shape[-1], size), size))


def _split_count(x: Tensor, chunks: Number, groups: Number, accelerator: Accelerator) -> Number:
    """Returns the number of parts of a group's heads with which all multiprocessors work (ssd_chunk_scan.py:1485)."""
    batch, _, heads, _ = x.shape
    ratio = exact_div(heads, groups)
    return ceil_div(ratio, minimum(ceil_div(batch * chunks * heads, accelerator.multiprocessors), ratio))


def _sum_workspace(t: Aten, shape: tuple[Number, ...], axis: int) -> Tensor:
    """Sums a workspace along an axis."""
    return t.sum(t.new(shape, FLOAT32), axis)


def _combined_bwd(
    t: Aten,
    dout: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    out: Tensor,
    chunk: Number,
    d: Tensor,
    z: Optional,
    dt_bias: Tensor,
    accelerator: Accelerator,
    dx: Optional = None,
    ddt: Optional = None,
    db: Optional = None,
    dc: Optional = None,
    dz: Optional = None,
    recompute_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Optional, Tensor, Optional]:
    """ssd_combined.py:402 (`_mamba_chunk_scan_combined_bwd`): the gradients of x, Δ, A, B, C, D, z and the bias of Δ,
    and the gated output again.
    """
    dout = _contiguous_along(t, dout, -1)
    batch, tokens, heads, dim = x.shape
    groups, state = b.shape[2], b.shape[3]
    chunks, chunk_blocks = ceil_div(tokens, chunk), ceil_div(chunk, 32)
    db = t.like(b) if db is None else db
    dc = t.like(c) if dc is None else dc
    ddt = t.like(dt) if ddt is None else ddt
    dt_in = t.like(dt)
    _da_cumsum, dt = _chunk_cumsum_fwd(t, dt_in, chunk)
    _cb = _bmm_chunk_fwd(t, c, chunk)
    states = _chunk_state_fwd(t, b, x, dt)
    states, _final = _state_passing_fwd(t, states)
    outz: Optional = out
    dd: Optional = None
    if z is not None:  # _chunk_scan_bwd_dz, ssd_chunk_scan.py:1363
        dd = t.new((chunk_blocks, batch, chunks, heads, 1), FLOAT32)
        dz = t.like(z) if dz is None else dz
        outz = t.like(x) if recompute_output else out
        dout = t.like(dout)
        dd = t.to(t.new((heads, 1), FLOAT32), d.dtype)
    dstates = t.new((batch, chunks, heads, dim, state), states.dtype)
    dstates, _dda_chunk, states = _state_passing_bwd(t, states, dstates, x.dtype)
    dx, _ddt, dd_from_x = _dx(t, x, d, (batch, heads, chunks, chunk), dx)
    splits = _split_count(x, chunks, groups, accelerator)
    dda_next = t.new((batch, heads, chunks, chunk), FLOAT32)  # _chunk_state_bwd_db, ssd_chunk_state.py:902
    _db = _sum_workspace(t, (batch, tokens, splits, groups, state), 2)
    dda_prev = t.new((batch, heads, chunks, chunk), FLOAT32)  # _chunk_scan_bwd_dC, ssd_chunk_scan.py:1451
    _dc = _sum_workspace(t, (batch, tokens, splits, groups, state), 2)
    _dcb = _sum_workspace(t, (batch, chunks, splits, groups, chunk, chunk), 2)
    _dda_before = t.like(t.like(t.like(dda_prev)))  # flip, cumsum, flip
    _dda = _sum_workspace(t, (batch, heads, chunks, chunk_blocks, chunk), 3)
    t.like(dda_next)  # ddA_next + ddA_prev
    dbias, da = t.like(dt_bias, dtype=FLOAT32), t.like(a, dtype=FLOAT32)
    return dx, ddt, da, db, dc, dd_from_x if dd is None else dd, dz, dbias, outz


def _dx(t: Aten, x: Tensor, d: Tensor, shape: tuple[Number, ...], dx: Optional) -> tuple[Tensor, Tensor, Tensor]:
    """Runs ssd_combined.py:261 (`_chunk_scan_chunk_state_bwd_dx`): the gradients of x, Δ and D."""
    batch, heads, chunks, chunk = shape
    dd = t.new((ceil_div(chunk, 32), batch, chunks, heads, 1), FLOAT32)
    dx = t.like(x) if dx is None else dx
    ddt = t.new(shape, FLOAT32)
    dd = t.sum(t.new((heads, 1), FLOAT32), -1)
    return dx, ddt, t.to(dd, d.dtype)


def _state_passing_bwd(t: Aten, states: Tensor, dout: Tensor, dtype: Dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Computes gradients of the states and the chunks' decays, and casts the states (ssd_state_passing.py:227)."""
    batch, chunks, heads, dim, state = states.shape
    dstates = t.like(dout, dtype=dtype)
    states_copy = states if states.dtype is dtype else t.like(states, dtype=dtype)
    return dstates, _sum_workspace(t, (batch, heads, chunks, ceil_div(dim * state, 64)), 3), states_copy


def mamba_chunk_scan_combined(t: Aten, *xs: Any) -> Tensor:
    """Runs `mamba_chunk_scan_with_state` and returns the output without the state."""
    return mamba_chunk_scan_with_state(t, *xs)[0]


def mamba_chunk_scan_with_state(
    t: Aten,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk: Number,
    d: Tensor,
    z: Optional,
    dt_bias: Tensor,
    accelerator: Accelerator = H100,
) -> tuple[Tensor, Tensor]:
    """Runs `MambaChunkScanCombinedFn` of ssd_combined.py:593.

    x, z: [batch, tokens, heads, dim]; dt: [batch, tokens, heads];
    b, c: [batch, tokens, groups, state]; a: [heads] in float32; d, dt_bias: [heads].

    Returns the output and the last state, [batch, heads, dim, state] in float32.
    """
    graph = t.graph

    def backward(
        dout: Tensor,
        out: Tensor,
        x: Tensor,
        dt: Tensor,
        da_cumsum: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor,
        z: Optional,
        dt_bias: Tensor,
    ) -> Sequence[Gradient]:
        dx, ddt, da, db, dc, dd, dz, dbias, _ = _combined_bwd(
            t, dout, x, dt, a, b, c, out, chunk, d, z, dt_bias, accelerator
        )
        return dx, ddt, da, db, dc, dd, dz, dbias

    with graph.no_grad():
        out, out_x, _dt, da_cumsum, _states, final = _combined_fwd(t, x, dt, b, c, chunk, z)
    saved_out = out if out_x is None else out_x
    ins = x, dt, a, b, c, d, z, dt_bias
    saves = saved_out, x, dt, da_cumsum, a, b, c, d, z, dt_bias
    return record_function(graph, "MambaChunkScanCombinedFn", ins, out, backward, saves), final


def _linear_or_input(t: Aten, x: Tensor, weight: Optional, bias: Optional) -> Tensor:
    """Computes x·Wᵀ + b; returns x without a weight."""
    return x if weight is None else t.linear(x, weight, bias)


def mamba_split_conv1d_scan_combined(
    t: Aten,
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: Optional,
    dt_bias: Tensor,
    a: Tensor,
    d: Tensor,
    chunk: Number,
    dim: Number,
    groups: Number,
    rmsnorm_weight: Optional,
    outproj_weight: Optional,
    outproj_bias: Optional,
    accelerator: Accelerator = H100,
) -> Tensor:
    """Runs ssd_combined.py:820 (`MambaSplitConv1dScanCombinedFn`): all of Mamba-2 after its input projection.

    zxbcdt: [batch, tokens, 2 · inner + 2 · groups · state + heads]. dim: the size of a head. The convolution, the
    scan's inner values and the norm's output are computed again in the backward pass. Without a weight of the output
    projection the result is that of the scan, or of the norm.
    """
    graph, (heads,) = t.graph, d.shape
    inner_width = heads * dim
    state = exact_div(exact_div(conv1d_weight.shape[0] - inner_width, groups), 2)
    conv_widths = [inner_width, groups * state, groups * state]

    def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits z, xBC and Δ, which are stored side by side."""
        z, u, dt = t.split(x, [inner_width, inner_width + 2 * groups * state, heads])
        return z, u, dt

    def split_convolved(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits x, B and C after the convolution. For widths in multiples of 8 `ensure_stride` copies nothing."""
        x, b, c = t.split(t.transpose(causal_conv1d_fwd(t, t.transpose(u, 1, 2)), 1, 2), conv_widths)
        return by_size(t, dim, x), by_size(t, state, b), by_size(t, state, c)

    def forward() -> tuple[Tensor, Tensor, Optional]:
        z, u, dt = parts(zxbcdt)
        x, b, c = split_convolved(u)
        z = by_size(t, dim, z)
        if rmsnorm_weight is None:
            out, out_x, _dt, _da_cumsum, _states, _final = _combined_fwd(t, x, dt, b, c, chunk, z)
            assert out_x is not None
            return _linear_or_input(t, t.flatten(out, 2), outproj_weight, outproj_bias), out_x, None
        out_x, _, _dt, _da_cumsum, _states, _final = _combined_fwd(t, x, dt, b, c, chunk, None)
        out, rstd = _layer_norm_fwd(t, t.flatten(t.flatten(out_x, 2), 0, 1), groups)
        out = t.unflatten(out, 0, zxbcdt.shape[:2])
        return _linear_or_input(t, out, outproj_weight, outproj_bias), out_x, rstd

    def backward(
        dout: Tensor,
        zxbcdt: Tensor,
        conv1d_weight: Tensor,
        conv1d_bias: Optional,
        out: Tensor,
        a: Tensor,
        d: Tensor,
        dt_bias: Tensor,
        rmsnorm_weight: Optional,
        rstd: Optional,
        outproj_weight: Optional,
        outproj_bias: Optional,
    ) -> Sequence[Gradient]:
        rows = out.shape[:2]
        out_recompute = None if outproj_weight is None else t.new((*rows, inner_width), out.dtype)
        z, u, dt = parts(zxbcdt)
        x, b, c = split_convolved(u)
        dzxbcdt = t.like(zxbcdt)
        dz, du, ddt = parts(dzxbcdt)
        dxbc = t.like(u)
        dx, db, dc = t.split(dxbc, conv_widths)
        z, dx, db, dc = by_size(t, dim, z), by_size(t, dim, dx), by_size(t, state, db), by_size(t, state, dc)
        dout_og = dout
        outproj_transposed = None if outproj_weight is None else t.transpose(outproj_weight, 0, 1)
        dout = by_size(t, dim, _linear_or_input(t, dout, outproj_transposed, None))
        drmsnorm_weight: Optional = None
        _recomputed_out: Optional = out_recompute
        if rmsnorm_weight is None:
            _, ddt, da, db, dc, dd, _, dbias, _recomputed_out = _combined_bwd(
                t,
                dout,
                x,
                dt,
                a,
                b,
                c,
                out,
                chunk,
                d,
                z,
                dt_bias,
                accelerator,
                dx,
                ddt,
                db,
                dc,
                by_size(t, dim, dz),
                outproj_weight is not None,
            )
        else:
            _dy = dout
            dout, drmsnorm_weight = _norm_bwd(t, out, rmsnorm_weight, groups, accelerator)
            dout = by_size(t, dim, t.unflatten(dout, 0, rows))
            _, ddt, da, db, dc, dd, _, dbias, _ = _combined_bwd(
                t, dout, x, dt, a, b, c, out, chunk, d, None, dt_bias, accelerator, dx, ddt, db, dc
            )
        doutproj_weight = None if outproj_weight is None else t.new(outproj_weight.shape, dout_og.dtype)
        doutproj_bias = None if outproj_bias is None else t.new(outproj_bias.shape, dout_og.dtype)
        _, dweight, dbias_of_conv = causal_conv1d_bwd(
            t, t.transpose(u, 1, 2), conv1d_weight, conv1d_bias, t.transpose(dxbc, 1, 2), t.transpose(du, 1, 2)
        )
        return (
            dzxbcdt,
            dweight,
            dbias_of_conv,
            dbias,
            da,
            dd,
            drmsnorm_weight,
            doutproj_weight,
            doutproj_bias,
        )

    with graph.no_grad():
        y, out, rstd = forward()
    ins = zxbcdt, conv1d_weight, conv1d_bias, dt_bias, a, d, rmsnorm_weight, outproj_weight, outproj_bias
    saves = zxbcdt, conv1d_weight, conv1d_bias, out, a, d, dt_bias, rmsnorm_weight, rstd, outproj_weight, outproj_bias
    return record_function(graph, "MambaSplitConv1dScanCombinedFn", ins, y, backward, saves)


# --- the gated norm --------------------------------------------------------------------------------------------------


def _layer_norm_fwd(t: Aten, x: Tensor, groups: Number) -> tuple[Tensor, Tensor]:
    """Runs layernorm_gated.py:108: the output, and 1/√ of the mean square of each row and group. x: [rows, width]."""
    return t.like(x), t.new((groups * x.shape[0],), FLOAT32)


def _dw(t: Aten, x: Tensor, weight: Tensor, groups: Number, accelerator: Accelerator) -> Tensor:
    """Computes the gradient of the weight, summed over all programs (layernorm_gated.py:306, in `_layer_norm_bwd`)."""
    warps = min(max(power_of_two(exact_div(x.shape[1], groups)) // 256, 1), 8)
    programs = ceil_div(accelerator.multiprocessors * ceil_div(4, warps), groups)
    partial_sums = t.new((programs, x.shape[1]), FLOAT32)
    return t.to(t.sum(partial_sums, 0), weight.dtype)


def _norm_bwd(t: Aten, x: Tensor, weight: Tensor, groups: Number, accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    """Runs `_layer_norm_bwd` (layernorm_gated.py:272) with an allocated gradient of the gate. x: as in the scan."""
    flat_x = t.flatten(t.flatten(x, 2), 0, 1)
    dx = t.like(flat_x)
    return dx, _dw(t, flat_x, weight, groups, accelerator)


def rmsnorm_fn(
    t: Aten, x: Tensor, weight: Tensor, z: Optional, groups: Number, accelerator: Accelerator = H100
) -> Tensor:
    """Runs `LayerNormFn` with is_rms_norm (layernorm_gated.py:362).

    It computes norm(x · silu(z)), or norm(x) · silu(z): both allocate the same. x, z: [batch, tokens, width].
    """
    graph, shape = t.graph, x.shape

    def rows(x: Tensor) -> Tensor:
        return _contiguous_along(t, t.flatten(x, 0, -2), -1)

    def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, z: Optional) -> Sequence[Gradient]:
        dy = rows(dy)
        dx = t.like(x)
        dz = None if z is None else t.like(z)
        dw = _dw(t, x, weight, groups, accelerator)
        return t.reshape(dx, shape), dw, None if dz is None else t.reshape(dz, shape)

    with graph.no_grad():
        flat_x, gate = rows(x), None if z is None else rows(z)
        y, rstd = _layer_norm_fwd(t, flat_x, groups)
        y = t.reshape(y, shape)
    return record_function(graph, "LayerNormFn", (x, weight, z), y, backward, (flat_x, weight, rstd, gate))
