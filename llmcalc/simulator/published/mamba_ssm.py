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
from ..tensor import FLOAT32, Dtype, OptionalGradient, Tensor
from .autograd_function import H100, Accelerator, OptionalTensor, next_power_of_two, record_function
from .causal_conv1d import causal_conv1d_bwd, causal_conv1d_fwd

CHUNK_TOKENS = 2048
"""Number of tokens between two states that the selective scan saves."""

STATES_INDEX = 7
"""Index of the saved states among the tensors that the selective scan saves."""


# --- orders of axes --------------------------------------------------------------------------------------------------


def split_halves(aten: Aten, x: Tensor) -> list[Tensor]:
    """Splits axis 1 in two: x.chunk(2, dim=1)."""
    half_width = exact_div(x.shape[1], 2)
    return aten.split(x, [half_width, half_width], 1)


def tokens_first(aten: Aten, x: Tensor) -> Tensor:
    """Reorders [batch, channels, tokens] → [batch · tokens, channels]."""
    return aten.flatten(aten.transpose(x, 1, 2), 0, 1)


def channels_first(aten: Aten, x: Tensor) -> Tensor:
    """Reorders [batch, channels, tokens] → [channels, batch · tokens]."""
    return aten.flatten(aten.transpose(x, 0, 1), 1, 2)


def split_tokens(aten: Aten, x: Tensor, batch: Number) -> Tensor:
    """Reorders [channels, batch · tokens] → [batch, channels, tokens]."""
    return aten.transpose(aten.unflatten(x, 1, (batch, exact_div(x.shape[1], batch))), 0, 1)


# --- the selective scan of Mamba -------------------------------------------------------------------------------------


def _scan_fwd(
    aten: Aten, u: Tensor, delta: Tensor, a: Tensor, z: OptionalTensor
) -> tuple[Tensor, Tensor, OptionalTensor]:
    """Runs the selective scan's forward kernel (selective_scan.cpp:227).

    Returns the output, the states between chunks with their products, and the gated output.
    """
    out_z = None if z is None else aten.new_like(z)
    output = aten.new_like(delta)
    chunk_states = aten.new_tensor(
        (u.shape[0], u.shape[1], ceil_div(u.shape[2], CHUNK_TOKENS), a.shape[1] * 2), a.dtype
    )
    return output, chunk_states, out_z


def _scan_bwd(
    aten: Aten,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    z: OptionalTensor,
    delta_bias: Tensor,
    output: OptionalTensor,
    dz: OptionalTensor = None,
    recompute_out_z: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, OptionalTensor, OptionalTensor]:
    """Runs the selective scan's backward kernel (selective_scan.cpp:338).

    Returns the gradients of u, Δ, A, B, C, D, the bias of Δ and z, and the gated output again.
    """
    if z is not None and dz is None:
        dz = aten.new_like(z)
    out_z = aten.new_like(output) if output is not None and z is not None and recompute_out_z else None
    du, ddelta, da = aten.new_like(u), aten.new_like(delta), aten.new_like(a)
    db, dc = aten.new_like(b, dtype=FLOAT32), aten.new_like(c, dtype=FLOAT32)
    dd, dbias = aten.new_like(d), aten.new_like(delta_bias)
    return du, ddelta, da, aten.to(db, b.dtype), aten.to(dc, c.dtype), dd, dbias, dz, out_z


def selective_scan_with_states(
    aten: Aten,
    u: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    z: OptionalTensor,
    delta_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Runs Mamba's selective scan, and returns its output and states (selective_scan_interface.py:38).

    u, delta, z: [batch, inner, tokens]; b, c: [batch, state, tokens] or with an axis of groups before `state`;
    a: [inner, state]; d, delta_bias: [inner] in float32.

    Returns the output, and the states between chunks, of which the last one is a view.
    """
    has_groups = len(b.shape) == 4

    def forward(u: Tensor, delta: Tensor, b: Tensor, c: Tensor, z: OptionalTensor) -> tuple[OptionalTensor, ...]:
        u, delta, b, c = (_with_contiguous_rows(aten, x) for x in (u, delta, b, c))
        z = None if z is None else _with_contiguous_rows(aten, z)
        if not has_groups:
            b, c = aten.unsqueeze(b, 1), aten.unsqueeze(c, 1)
        output, chunk_states, out_z = _scan_fwd(aten, u, delta, a, z)
        if z is None:
            return output, u, delta, a, b, c, d, delta_bias, chunk_states, None, None
        return out_z, u, delta, a, b, c, d, delta_bias, chunk_states, z, output

    def backward(dout: Tensor, *saved_tensors: Any) -> Sequence[OptionalGradient]:
        u, delta, a, b, c, d, delta_bias, _, z, output = saved_tensors
        if not is_size_one(dout.strides[-1]):
            dout = aten.contiguous(dout)
        du, ddelta, da, db, dc, dd, dbias, dz, _ = _scan_bwd(aten, u, delta, a, b, c, d, z, delta_bias, output)
        if not has_groups:
            db, dc = aten.select(db, 1), aten.select(dc, 1)
        return du, ddelta, da, db, dc, dd, dz, dbias

    with aten.graph.no_grad():
        scan_output, *saved_tensors = forward(u, delta, b, c, z)
    assert scan_output is not None
    states = saved_tensors[STATES_INDEX]
    assert states is not None
    output = record_function(
        aten, "SelectiveScanFn", (u, delta, a, b, c, d, z, delta_bias), scan_output, backward, saved_tensors
    )
    return output, states


def _project_delta(aten: Aten, x_dbl: Tensor, weight: Tensor, batch: Number) -> Tensor:
    """Computes Δ: `rearrange(delta_proj_weight @ x_dbl[:, :delta_rank].t(), "d (b l) -> b d l")`."""
    return split_tokens(aten, aten.mm(weight, aten.transpose(aten.slice(x_dbl, weight.shape[1]), 0, 1)), batch)


def _copy_state_matrix(aten: Aten, x_dbl: Tensor, state_size: Number, batch: Number) -> Tensor:
    """Copies B or C: `rearrange(x_dbl[:, …], "(b l) dstate -> b 1 dstate l").contiguous()`."""
    dense_state = aten.unflatten(aten.slice(x_dbl, state_size), 0, (batch, exact_div(x_dbl.shape[0], batch)))
    return aten.contiguous(aten.transpose(aten.unsqueeze(dense_state, 1), 2, 3))


def mamba_inner_fn(  # noqa: PLR0915
    aten: Aten,
    xz: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: OptionalTensor,
    x_proj_weight: Tensor,
    delta_proj_weight: Tensor,
    out_proj_weight: Tensor,
    a: Tensor,
    d: Tensor,
    delta_bias: Tensor,
) -> Tensor:
    """Runs a Mamba mixer after the input projection as one function (selective_scan_interface.py:183).

    xz: [batch, 2 · inner, tokens]. The convolution and Δ are computed again in the backward pass.
    There is no bias of the output projection: the library's gradient of one has no shape, and autograd refuses it.
    """
    delta_rank, state_size = delta_proj_weight.shape[1], a.shape[-1]

    def forward(xz: Tensor) -> tuple[Tensor, ...]:
        if not is_size_one(xz.strides[-1]):
            xz = aten.contiguous(xz)
        batch = xz.shape[0]
        x, z = split_halves(aten, xz)
        conv1d_out: OptionalTensor = causal_conv1d_fwd(aten, x)
        assert conv1d_out is not None
        x_dbl = aten.linear(tokens_first(aten, conv1d_out), x_proj_weight)
        delta: OptionalTensor = _project_delta(aten, x_dbl, delta_proj_weight, batch)
        assert delta is not None
        b, c = _copy_state_matrix(aten, x_dbl, state_size, batch), _copy_state_matrix(aten, x_dbl, state_size, batch)
        output, chunk_states, out_z = _scan_fwd(aten, conv1d_out, delta, a, z)
        conv1d_out = delta = None
        assert out_z is not None
        y = aten.linear(aten.transpose(out_z, 1, 2), out_proj_weight)
        return y, xz, x_dbl, b, c, chunk_states, output

    def backward(dout: Tensor, *saved_tensors: Any) -> Sequence[OptionalGradient]:
        *inputs, a, b, c, d, delta_bias, _, output = saved_tensors
        xz, conv1d_weight, conv1d_bias, x_dbl, x_proj_weight, delta_proj_weight, out_proj_weight = inputs
        batch = xz.shape[0]
        x, z = split_halves(aten, xz)
        dout = _with_contiguous_rows(aten, dout)
        conv1d_out = causal_conv1d_fwd(aten, x)
        delta = _project_delta(aten, x_dbl, delta_proj_weight, batch)
        dxz = aten.new_like(xz)
        dx, dz = split_halves(aten, dxz)
        dout = aten.reshape(
            aten.transpose(aten.transpose(dout, 1, 2), 0, 1), (dout.shape[2], dout.shape[0] * dout.shape[1])
        )
        _dout_y = split_tokens(aten, aten.mm(aten.transpose(out_proj_weight, 0, 1), dout), batch)
        dconv1d_out, ddelta, da, db, dc, dd, dbias, _, out_z = _scan_bwd(
            aten, conv1d_out, delta, a, b, c, d, z, delta_bias, output, dz, True
        )
        assert out_z is not None
        flat_output = channels_first(aten, out_z)
        dout_proj_weight = aten.new_tensor(out_proj_weight.shape, dout.dtype)
        del flat_output
        dx_dbl = aten.new_like(x_dbl)
        db = aten.contiguous(tokens_first(aten, aten.select(db, 1)))
        del db  # copied into dx_dbl
        dc = aten.contiguous(tokens_first(aten, aten.select(dc, 1)))
        del dc
        ddelta = channels_first(aten, ddelta)
        ddelta_proj_weight = aten.new_tensor(delta_proj_weight.shape, ddelta.dtype)
        aten.new_tensor((x_dbl.shape[0], delta_rank), ddelta.dtype)  # einsum("dB,dr->Br"), copied into dx_dbl
        dconv1d_out = channels_first(aten, dconv1d_out)
        flat_output = tokens_first(aten, conv1d_out)
        dx_proj_weight = aten.new_tensor(x_proj_weight.shape, dx_dbl.dtype)
        del flat_output
        dconv1d_out = split_tokens(aten, dconv1d_out, batch)
        dx, dconv1d_weight, dconv1d_bias = causal_conv1d_bwd(aten, x, conv1d_weight, conv1d_bias, dconv1d_out, dx)
        return (dxz, dconv1d_weight, dconv1d_bias, dx_proj_weight, ddelta_proj_weight, dout_proj_weight, da, dd, dbias)

    with aten.graph.no_grad():
        y, dense_inputs, x_dbl, b, c, chunk_states, output = forward(xz)
    weights = conv1d_weight, conv1d_bias, x_proj_weight, delta_proj_weight, out_proj_weight
    saved_tensors = dense_inputs, conv1d_weight, conv1d_bias, x_dbl, x_proj_weight, delta_proj_weight, out_proj_weight
    return record_function(
        aten,
        "MambaInnerFn",
        (xz, *weights, a, d, delta_bias),
        y,
        backward,
        (*saved_tensors, a, b, c, d, delta_bias, chunk_states, output),
    )


# --- the chunked scan of Mamba-2 -------------------------------------------------------------------------------------


def _chunk_cumsum_fwd(aten: Aten, dt: Tensor, chunk_size: Number) -> tuple[Tensor, Tensor]:
    """Computes the sums of log decays, and Δ, of every chunk (ssd_chunk_state.py:718)."""
    batch, token_count, heads = dt.shape
    shape = batch, heads, ceil_div(token_count, chunk_size), chunk_size
    dt_out = aten.new_tensor(shape, FLOAT32)
    return aten.new_tensor(shape, FLOAT32), dt_out


def _chunk_state_fwd(aten: Aten, b: Tensor, x: Tensor, dt: Tensor) -> Tensor:
    """Computes each chunk's contribution to the state, in float32 (ssd_chunk_state.py:812)."""
    batch, _, heads, dim = x.shape
    return aten.new_tensor((batch, dt.shape[2], heads, dim, b.shape[-1]), FLOAT32)


def _state_passing_fwd(aten: Aten, chunk_states: Tensor, dtype: Dtype | None = None) -> tuple[Tensor, Tensor]:
    """Computes the state before each chunk and the last state (ssd_state_passing.py:196)."""
    batch, _, heads, *state_shape = chunk_states.shape
    output = aten.new_tensor(chunk_states.shape, chunk_states.dtype if dtype is None else dtype)
    return output, aten.new_tensor((batch, heads, *state_shape), FLOAT32)


def _bmm_chunk_fwd(aten: Aten, c: Tensor, chunk_size: Number) -> Tensor:
    """Computes C·Bᵀ of every chunk and group, in float32 (ssd_bmm.py:165)."""
    batch, token_count, group_count, _ = c.shape
    return aten.new_tensor((batch, ceil_div(token_count, chunk_size), group_count, chunk_size, chunk_size), FLOAT32)


def _combined_fwd(
    aten: Aten, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, chunk_size: Number, z: OptionalTensor
) -> tuple[Tensor, OptionalTensor, Tensor, Tensor, Tensor, Tensor]:
    """Runs the forward pass of Mamba-2's chunked scan (ssd_combined.py:338, `_mamba_chunk_scan_combined_fwd`).

    Returns the gated output and the output before the gate (the same without a gate), Δ, the sums of log decays, the
    states and the last state.
    """
    b, c = _with_contiguous_rows(aten, b), _with_contiguous_rows(aten, c)
    x = x if is_size_one(x.strides[-1]) or is_size_one(x.strides[1]) else aten.contiguous(x)
    if z is not None and not is_size_one(z.strides[-1]) and not is_size_one(z.strides[1]):
        z = aten.contiguous(z)
    da_cumsum, dt = _chunk_cumsum_fwd(aten, dt, chunk_size)
    chunk_states = _chunk_state_fwd(aten, b, x, dt)
    chunk_states, final_state = _state_passing_fwd(aten, chunk_states, c.dtype)
    _cb = _bmm_chunk_fwd(aten, c, chunk_size)
    output = aten.new_tensor(x.shape, x.dtype)
    out_x = None if z is None else aten.new_tensor(x.shape, x.dtype)
    return output, out_x, dt, da_cumsum, chunk_states, final_state


def _with_contiguous_rows(aten: Aten, x: Tensor) -> Tensor:
    """Copies a tensor unless the last axis is contiguous."""
    return x if is_size_one(x.strides[-1]) else aten.contiguous(x)


def _split_heads_by_size(aten: Aten, head_size: Number, x: Tensor) -> Tensor:
    """Splits the last axis into heads: rearrange(x, "... (h d) -> ... h d")."""
    return aten.unflatten(x, -1, (exact_div(x.shape[-1], head_size), head_size))


def _split_count(x: Tensor, chunk_count: Number, group_count: Number, accelerator: Accelerator) -> Number:
    """Returns the number of parts into which a group's heads are split to keep all multiprocessors busy."""
    batch, _, heads, _ = x.shape
    heads_per_group = exact_div(heads, group_count)
    return ceil_div(
        heads_per_group, minimum(ceil_div(batch * chunk_count * heads, accelerator.multiprocessors), heads_per_group)
    )


def _sum_workspace(aten: Aten, shape: tuple[Number, ...], axis: int) -> Tensor:
    """Allocates a float32 workspace of a shape, and sums the workspace along an axis."""
    return aten.sum(aten.new_tensor(shape, FLOAT32), axis)


def _combined_bwd(
    aten: Aten,
    dout: Tensor,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    output: Tensor,
    chunk_size: Number,
    d: Tensor,
    z: OptionalTensor,
    dt_bias: Tensor,
    accelerator: Accelerator,
    dx: OptionalTensor = None,
    ddt: OptionalTensor = None,
    db: OptionalTensor = None,
    dc: OptionalTensor = None,
    dz: OptionalTensor = None,
    recompute_output: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, OptionalTensor, Tensor, OptionalTensor]:
    """Runs the backward pass of Mamba-2's chunked scan, and recomputes the gated output (ssd_combined.py:402)."""
    dout = _with_contiguous_rows(aten, dout)
    batch, token_count, heads, dim = x.shape
    group_count, state_size = b.shape[2], b.shape[3]
    chunk_count, blocks_per_chunk = ceil_div(token_count, chunk_size), ceil_div(chunk_size, 32)
    db = aten.new_like(b) if db is None else db
    dc = aten.new_like(c) if dc is None else dc
    ddt = aten.new_like(dt) if ddt is None else ddt
    dt_in = aten.new_like(dt)
    _da_cumsum, dt = _chunk_cumsum_fwd(aten, dt_in, chunk_size)
    _cb = _bmm_chunk_fwd(aten, c, chunk_size)
    chunk_states = _chunk_state_fwd(aten, b, x, dt)
    chunk_states, _final_state = _state_passing_fwd(aten, chunk_states)
    outz: OptionalTensor = output
    dd: OptionalTensor = None
    if z is not None:  # _chunk_scan_bwd_dz, ssd_chunk_scan.py:1363
        dd = aten.new_tensor((blocks_per_chunk, batch, chunk_count, heads, 1), FLOAT32)
        dz = aten.new_like(z) if dz is None else dz
        outz = aten.new_like(x) if recompute_output else output
        dout = aten.new_like(dout)
        dd = aten.to(aten.new_tensor((heads, 1), FLOAT32), d.dtype)
    dstates = aten.new_tensor((batch, chunk_count, heads, dim, state_size), chunk_states.dtype)
    dstates, _dda_chunk, chunk_states = _state_passing_bwd(aten, chunk_states, dstates, x.dtype)
    dx, _ddt, dd_from_x = _chunk_scan_gradients(aten, x, d, (batch, heads, chunk_count, chunk_size), dx)
    split_count = _split_count(x, chunk_count, group_count, accelerator)
    # _chunk_state_bwd_db, ssd_chunk_state.py:902
    dda_next = aten.new_tensor((batch, heads, chunk_count, chunk_size), FLOAT32)
    _db = _sum_workspace(aten, (batch, token_count, split_count, group_count, state_size), 2)
    # _chunk_scan_bwd_dC, ssd_chunk_scan.py:1451
    dda_prev = aten.new_tensor((batch, heads, chunk_count, chunk_size), FLOAT32)
    _dc = _sum_workspace(aten, (batch, token_count, split_count, group_count, state_size), 2)
    _dcb = _sum_workspace(aten, (batch, chunk_count, split_count, group_count, chunk_size, chunk_size), 2)
    _dda_before = aten.new_like(aten.new_like(aten.new_like(dda_prev)))  # flip, cumsum, flip
    _dda = _sum_workspace(aten, (batch, heads, chunk_count, blocks_per_chunk, chunk_size), 3)
    aten.new_like(dda_next)  # ddA_next + ddA_prev
    dbias, da = aten.new_like(dt_bias, dtype=FLOAT32), aten.new_like(a, dtype=FLOAT32)
    return dx, ddt, da, db, dc, dd_from_x if dd is None else dd, dz, dbias, outz


def _chunk_scan_gradients(
    aten: Aten, x: Tensor, d: Tensor, shape: tuple[Number, ...], dx: OptionalTensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes the chunked scan's gradients of x, Δ and D (ssd_combined.py:261, `_chunk_scan_chunk_state_bwd_dx`)."""
    batch, heads, chunk_count, chunk_size = shape
    dd = aten.new_tensor((ceil_div(chunk_size, 32), batch, chunk_count, heads, 1), FLOAT32)
    dx = aten.new_like(x) if dx is None else dx
    ddt = aten.new_tensor(shape, FLOAT32)
    dd = aten.sum(aten.new_tensor((heads, 1), FLOAT32), -1)
    return dx, ddt, aten.to(dd, d.dtype)


def _state_passing_bwd(aten: Aten, chunk_states: Tensor, dout: Tensor, dtype: Dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Computes gradients of the states and the chunks' decays, and casts the states (ssd_state_passing.py:227)."""
    batch, chunk_count, heads, dim, state_size = chunk_states.shape
    dstates = aten.new_like(dout, dtype=dtype)
    states_copy = chunk_states if chunk_states.dtype is dtype else aten.new_like(chunk_states, dtype=dtype)
    return dstates, _sum_workspace(aten, (batch, heads, chunk_count, ceil_div(dim * state_size, 64)), 3), states_copy


def mamba_chunk_scan_with_state(
    aten: Aten,
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    chunk_size: Number,
    d: Tensor,
    z: OptionalTensor,
    dt_bias: Tensor,
    accelerator: Accelerator = H100,
) -> tuple[Tensor, Tensor]:
    """Runs Mamba-2's chunked scan (ssd_combined.py:593, `MambaChunkScanCombinedFn`).

    x, z: [batch, tokens, heads, dim]; dt: [batch, tokens, heads];
    b, c: [batch, tokens, groups, state]; a: [heads] in float32; d, dt_bias: [heads].

    Returns the output and the last state, [batch, heads, dim, state] in float32.
    """

    def backward(dout: Tensor, *saved_tensors: Any) -> Sequence[OptionalGradient]:
        output, x, dt, _, a, b, c, d, z, dt_bias = saved_tensors
        dx, ddt, da, db, dc, dd, dz, dbias, _ = _combined_bwd(
            aten, dout, x, dt, a, b, c, output, chunk_size, d, z, dt_bias, accelerator
        )
        return dx, ddt, da, db, dc, dd, dz, dbias

    with aten.graph.no_grad():
        output, out_x, _dt, da_cumsum, _states, final_state = _combined_fwd(aten, x, dt, b, c, chunk_size, z)
    saved_out = output if out_x is None else out_x
    inputs = x, dt, a, b, c, d, z, dt_bias
    saved_tensors = saved_out, x, dt, da_cumsum, a, b, c, d, z, dt_bias
    return record_function(aten, "MambaChunkScanCombinedFn", inputs, output, backward, saved_tensors), final_state


def _linear_or_input(aten: Aten, x: Tensor, weight: OptionalTensor, bias: OptionalTensor) -> Tensor:
    """Computes x·Wᵀ + b, or returns x if there is no weight."""
    return x if weight is None else aten.linear(x, weight, bias)


def mamba_split_conv1d_scan_combined(  # noqa: PLR0915
    aten: Aten,
    zxbcdt: Tensor,
    conv1d_weight: Tensor,
    conv1d_bias: OptionalTensor,
    dt_bias: Tensor,
    a: Tensor,
    d: Tensor,
    chunk_size: Number,
    dim: Number,
    group_count: Number,
    rmsnorm_weight: OptionalTensor,
    outproj_weight: OptionalTensor,
    outproj_bias: OptionalTensor,
    accelerator: Accelerator = H100,
) -> Tensor:
    """Runs a Mamba-2 mixer after the input projection (ssd_combined.py:820, `MambaSplitConv1dScanCombinedFn`).

    zxbcdt: [batch, tokens, 2 · inner + 2 · groups · state + heads]. dim: the size of a head. The convolution, the
    scan's inner values and the norm's output are computed again in the backward pass. Without a weight of the output
    projection the result is that of the scan, or of the norm.
    """
    (heads,) = d.shape
    inner_width = heads * dim
    state_size = exact_div(exact_div(conv1d_weight.shape[0] - inner_width, group_count), 2)
    conv_widths = [inner_width, group_count * state_size, group_count * state_size]

    def split_parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits the input projection's output into z (by head), xBC and Δ."""
        z, u, dt = aten.split(x, [inner_width, inner_width + 2 * group_count * state_size, heads])
        return _split_heads_by_size(aten, dim, z), u, dt

    def split_convolved(u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Splits the convolution's output into x, B and C.

        For widths in multiples of 8 `ensure_stride` copies nothing.
        """
        x, b, c = aten.split(aten.transpose(causal_conv1d_fwd(aten, aten.transpose(u, 1, 2)), 1, 2), conv_widths)
        return (
            _split_heads_by_size(aten, dim, x),
            _split_heads_by_size(aten, state_size, b),
            _split_heads_by_size(aten, state_size, c),
        )

    def forward() -> tuple[Tensor, Tensor, OptionalTensor]:
        z, u, dt = split_parts(zxbcdt)
        x, b, c = split_convolved(u)
        if rmsnorm_weight is None:
            output, out_x, _dt, _da_cumsum, _states, _final = _combined_fwd(aten, x, dt, b, c, chunk_size, z)
            assert out_x is not None
            return _linear_or_input(aten, aten.flatten(output, 2), outproj_weight, outproj_bias), out_x, None
        out_x, _, _dt, _da_cumsum, _states, _final = _combined_fwd(aten, x, dt, b, c, chunk_size, None)
        output, rstd = _layer_norm_fwd(aten, aten.flatten(aten.flatten(out_x, 2), 0, 1), group_count)
        output = aten.unflatten(output, 0, zxbcdt.shape[:2])
        return _linear_or_input(aten, output, outproj_weight, outproj_bias), out_x, rstd

    def backward(dout: Tensor, *saved_tensors: Any) -> Sequence[OptionalGradient]:
        *inputs, rmsnorm_weight, _, outproj_weight, outproj_bias = saved_tensors
        zxbcdt, conv1d_weight, conv1d_bias, output, a, d, dt_bias = inputs
        row_shape = output.shape[:2]
        out_recompute = None if outproj_weight is None else aten.new_tensor((*row_shape, inner_width), output.dtype)
        z, u, dt = split_parts(zxbcdt)
        x, b, c = split_convolved(u)
        dzxbcdt = aten.new_like(zxbcdt)
        dz, du, ddt = split_parts(dzxbcdt)
        dxbc = aten.new_like(u)
        dx, db, dc = aten.split(dxbc, conv_widths)
        dx = _split_heads_by_size(aten, dim, dx)
        db = _split_heads_by_size(aten, state_size, db)
        dc = _split_heads_by_size(aten, state_size, dc)
        dout_og = dout
        outproj_transposed = None if outproj_weight is None else aten.transpose(outproj_weight, 0, 1)
        dout = _split_heads_by_size(aten, dim, _linear_or_input(aten, dout, outproj_transposed, None))
        drmsnorm_weight: OptionalTensor = None
        _recomputed_out: OptionalTensor = out_recompute
        if rmsnorm_weight is None:
            _, ddt, da, db, dc, dd, _, dbias, _recomputed_out = _combined_bwd(
                aten,
                dout,
                x,
                dt,
                a,
                b,
                c,
                output,
                chunk_size,
                d,
                z,
                dt_bias,
                accelerator,
                dx,
                ddt,
                db,
                dc,
                dz,
                outproj_weight is not None,
            )
        else:
            _dy = dout
            dout, drmsnorm_weight = _norm_bwd(aten, output, rmsnorm_weight, group_count, accelerator)
            dout = _split_heads_by_size(aten, dim, aten.unflatten(dout, 0, row_shape))
            _, ddt, da, db, dc, dd, _, dbias, _ = _combined_bwd(
                aten, dout, x, dt, a, b, c, output, chunk_size, d, None, dt_bias, accelerator, dx, ddt, db, dc
            )
        doutproj_weight = None if outproj_weight is None else aten.new_tensor(outproj_weight.shape, dout_og.dtype)
        doutproj_bias = None if outproj_bias is None else aten.new_tensor(outproj_bias.shape, dout_og.dtype)
        _, dweight, dbias_of_conv = causal_conv1d_bwd(
            aten,
            aten.transpose(u, 1, 2),
            conv1d_weight,
            conv1d_bias,
            aten.transpose(dxbc, 1, 2),
            aten.transpose(du, 1, 2),
        )
        return (dzxbcdt, dweight, dbias_of_conv, dbias, da, dd, drmsnorm_weight, doutproj_weight, doutproj_bias)

    with aten.graph.no_grad():
        y, output, rstd = forward()
    inputs = zxbcdt, conv1d_weight, conv1d_bias, dt_bias, a, d, rmsnorm_weight, outproj_weight, outproj_bias
    saved_tensors = (
        zxbcdt,
        conv1d_weight,
        conv1d_bias,
        output,
        a,
        d,
        dt_bias,
        rmsnorm_weight,
        rstd,
        outproj_weight,
        outproj_bias,
    )
    return record_function(aten, "MambaSplitConv1dScanCombinedFn", inputs, y, backward, saved_tensors)


# --- the gated norm --------------------------------------------------------------------------------------------------


def _layer_norm_fwd(aten: Aten, x: Tensor, group_count: Number) -> tuple[Tensor, Tensor]:
    """Computes a grouped RMSNorm of x [rows, width], and 1 / RMS of each row and group (layernorm_gated.py:108)."""
    return aten.new_like(x), aten.new_tensor((group_count * x.shape[0],), FLOAT32)


def _norm_weight_gradient(
    aten: Aten, x: Tensor, weight: Tensor, group_count: Number, accelerator: Accelerator
) -> Tensor:
    """Sums the partial gradients of the norm's weight from all Triton programs (layernorm_gated.py:306)."""
    warp_count = min(max(next_power_of_two(exact_div(x.shape[1], group_count)) // 256, 1), 8)
    program_count = ceil_div(accelerator.multiprocessors * ceil_div(4, warp_count), group_count)
    partial_sums = aten.new_tensor((program_count, x.shape[1]), FLOAT32)
    return aten.to(aten.sum(partial_sums, 0), weight.dtype)


def _norm_bwd(
    aten: Aten, x: Tensor, weight: Tensor, group_count: Number, accelerator: Accelerator
) -> tuple[Tensor, Tensor]:
    """Computes the norm's gradients of x and weight, without the gate's gradient (layernorm_gated.py:272)."""
    flat_x = aten.flatten(aten.flatten(x, 2), 0, 1)
    dx = aten.new_like(flat_x)
    return dx, _norm_weight_gradient(aten, flat_x, weight, group_count, accelerator)


def rmsnorm_fn(
    aten: Aten, x: Tensor, weight: Tensor, z: OptionalTensor, group_count: Number, accelerator: Accelerator = H100
) -> Tensor:
    """Runs a grouped RMSNorm with an optional gate z (layernorm_gated.py:362, `LayerNormFn` with is_rms_norm).

    It computes norm(x · silu(z)), or norm(x) · silu(z): both allocate the same. x, z: [batch, tokens, width].
    """
    shape = x.shape

    def flatten_rows(x: Tensor) -> Tensor:
        return _with_contiguous_rows(aten, aten.flatten(x, 0, -2))

    def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, z: OptionalTensor) -> Sequence[OptionalGradient]:
        dy = flatten_rows(dy)
        dx = aten.new_like(x)
        dz = None if z is None else aten.new_like(z)
        dw = _norm_weight_gradient(aten, x, weight, group_count, accelerator)
        return aten.reshape(dx, shape), dw, None if dz is None else aten.reshape(dz, shape)

    with aten.graph.no_grad():
        flat_x, gate = flatten_rows(x), None if z is None else flatten_rows(z)
        y, rstd = _layer_norm_fwd(aten, flat_x, group_count)
        y = aten.reshape(y, shape)
    return record_function(aten, "LayerNormFn", (x, weight, z), y, backward, (flat_x, weight, rstd, gate))
