"""Mamba (Gu & Dao 2023, arXiv:2312.00752) and Mamba-2 (Dao & Gu 2024, arXiv:2405.21060)."""

from __future__ import annotations

from typing import Any

from .....algebra import exact_div
from .....components.base import PUBLISHED
from .....components.norm import Norm
from .....evidence import compared
from .....ops import ChunkedScan, SelectiveScan, State
from ....published import mamba_ssm
from ....tensor import FLOAT32, Tensor
from .module_steps import Steps
from .modules import ScanModules

NORMS = "dt_norm", "b_norm", "c_norm"
"""The norms on Δ, B and C."""


class MambaKernels(ScanModules):
    """Kernels of Mamba and Mamba-2."""

    @compared(PUBLISHED)
    def module_SelectiveScan(self, steps: Steps, x: Tensor) -> Tensor:
        if steps["x_proj"].verb == "experts":
            return self.mamba_of_heads(steps, x)
        has_fused_kernel = 2 <= steps["conv1d"].options["kernel"] <= 4 and steps.acts[0] == "silu"
        return self.mamba(steps, x) if has_fused_kernel and "dt_norm" not in steps else self.mamba_of_steps(steps, x)

    def mamba(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs mamba_ssm/modules/mamba_simple.py:119 (`Mamba.forward`)."""
        t, op, conv, out_proj = self.t, steps["scan"].op, steps["conv1d"], steps["out_proj"]
        assert isinstance(op, SelectiveScan)
        batch = x.shape[0]
        hidden = t.flatten(t.transpose(t.transpose(x, 1, 2), 0, 1), 1, 2)
        xz = mamba_ssm.split_tokens(t, t.mm(self.raw_weight(steps["in_proj"]), hidden), batch)
        del hidden
        bias = self.bias(steps["in_proj"])
        if bias is not None:
            xz = t.add(xz, t.unsqueeze(bias, 1))
        a = self.decay((op.inner, op.state))
        d, dt_bias = self.weight("D", (op.inner,)), self.bias(steps["dt_proj"])
        assert dt_bias is not None
        if self.bias(out_proj) is None and self.store is None:
            return mamba_ssm.mamba_inner_fn(
                t,
                xz,
                self.filters(conv),
                self.bias(conv),
                self.raw_weight(steps["x_proj"]),
                self.raw_weight(steps["dt_proj"]),
                self.raw_weight(out_proj),
                a,
                t.to(d, FLOAT32),
                t.to(dt_bias, FLOAT32),
            )
        u, z = mamba_ssm.split_halves(t, xz)
        self.keep_inputs(steps["conv_state"], u)
        u = self.causal_conv(conv, u)
        x_dbl = self.project(steps["x_proj"], mamba_ssm.tokens_first(t, u))
        dt, b, c = t.split(x_dbl, [steps["x_proj"].outs[0].width - 2 * op.state, op.state, op.state])
        dt = t.mm(self.raw_weight(steps["dt_proj"]), t.transpose(dt, 0, 1))
        dt = mamba_ssm.split_tokens(t, dt, batch)
        b, c = self._dense_parameter(b, batch), self._dense_parameter(c, batch)
        d, dt_bias = t.to(d, FLOAT32), t.to(dt_bias, FLOAT32)
        y, _last_state = mamba_ssm.selective_scan_with_states(t, u, dt, a, b, c, d, z, dt_bias)
        del d, dt_bias
        if self.store is None:
            del _last_state
        self.states(steps["ssm_state"], (op.inner, op.state))
        y = t.transpose(y, 1, 2)
        return self.project(out_proj, y)

    def _dense_parameter(self, x: Tensor, batch: Any) -> Tensor:
        """Reorders and copies a tensor: rearrange(x, "(b l) dstate -> b dstate l").contiguous()."""
        return self.t.contiguous(self.t.transpose(self.t.unflatten(x, 0, (batch, exact_div(x.shape[0], batch))), 1, 2))

    def mamba_of_steps(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs `JambaMambaMixer.forward` of transformers/models/jamba/modeling_jamba.py, with norms on Δ, B and C.

        An activation that the kernels do not have runs after them.
        """
        t, op, kind = self.t, steps["scan"].op, steps.acts[0]
        assert isinstance(op, SelectiveScan)
        project = t.transpose(self.project(steps["in_proj"], x), 1, 2)
        a = self.decay((op.inner, op.state))
        u, gate = mamba_ssm.split_halves(t, project)
        u = t.transpose(self._after_state(steps, u, kind), 1, 2)
        rank = steps["x_proj"].outs[0].width - 2 * op.state
        dt, b, c = t.split(self.project(steps["x_proj"], u), [rank, op.state, op.state])
        if "dt_norm" in steps:
            dt, b, c = (self._normalize_with(steps[name], y) for name, y in zip(NORMS, (dt, b, c), strict=True))
        dt = t.contiguous(t.transpose(t.linear(dt, self.raw_weight(steps["dt_proj"])), 1, 2))
        dt_bias = self.bias(steps["dt_proj"])
        assert dt_bias is not None
        dt_bias = t.to(dt_bias, FLOAT32)
        d = t.to(self.weight("D", (op.inner,)), FLOAT32)
        u, b, c = t.transpose(u, 1, 2), t.transpose(b, 1, 2), t.transpose(c, 1, 2)
        y, _last_state = mamba_ssm.selective_scan_with_states(
            t, u, dt, a, b, c, d, gate if kind == "silu" else None, dt_bias
        )
        if self.store is None:
            del _last_state
        self.states(steps["ssm_state"], (op.inner, op.state))
        if kind != "silu":
            y = t.mul(y, self.apply_activation(gate, kind))
        return self.project(steps["out_proj"], t.transpose(y, 1, 2))

    def _after_state(self, steps: Steps, x: Tensor, kind: str) -> Tensor:
        """Convolves after cached inputs (transformers/cache_utils.py, `update_conv_state`)."""
        t, state, tokens = self.t, steps["conv_state"], x.shape[2]
        if self.store is None:
            return self.causal_conv(steps["conv1d"], x, kind)
        assert isinstance(state.op, State)
        cached_tokens, cached_inputs = exact_div(state.op.size, x.shape[1]), self.cached(state.name)
        (state_tensor,) = self.states(state, (x.shape[1], cached_tokens))
        if cached_inputs is not None:
            x = t.cat([state_tensor, x])
        elif tokens < cached_tokens:
            x = t.new((*x.shape[:2], cached_tokens), x.dtype)
        return t.slice(self.causal_conv(steps["conv1d"], x, kind), tokens)

    def mamba_of_heads(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs transformers/models/zamba/modeling_zamba.py (`ZambaMambaMixer.forward`): a scan for each head."""
        t, op, kind = self.t, steps["scan"].op, steps.acts[0]
        assert isinstance(op, SelectiveScan)
        heads = steps["x_proj"].options["experts"].size
        (batch, tokens), size = x.shape[:2], exact_div(op.inner, heads)
        rank = steps["x_proj"].outs[0].width - 2 * op.state
        project = t.transpose(self.project(steps["in_proj"], x), 1, 2)
        u, gate = t.split(t.unflatten(project, 1, (op.inner, 2)), [1, 1], 2)
        u = t.contiguous(t.reshape(u, (batch, op.inner, tokens)))
        gate = t.transpose(t.reshape(gate, (batch, heads, size, tokens)), 0, 1)
        u = self._after_state(steps, u, kind)
        u = t.transpose(t.reshape(u, (batch, heads, size, tokens)), 0, 1)
        x_proj = self.weight("x_proj.weight", (heads, rank + 2 * op.state, size))
        dt_b_c = t.transpose(t.matmul(t.unsqueeze(x_proj, 1), u), 2, 3)
        dt, b, c = t.split(dt_b_c, [rank, op.state, op.state])
        dt_proj = self.weight("dt_proj.weight", (heads, size, rank))
        dt = t.matmul(t.unsqueeze(dt_proj, 1), t.transpose(dt, 2, 3))
        dt_bias = t.to(self.weight("dt_proj.bias", (heads, size)), FLOAT32)
        a, d = self.decay((heads, size, op.state)), self.weight("D", (heads, size))
        outs, _states = [], []
        for _ in range(heads):
            y, last_state = mamba_ssm.selective_scan_with_states(
                t,
                t.select(u, 0),
                t.select(dt, 0),
                t.select(a, 0),
                t.transpose(t.select(b, 0), 1, 2),
                t.transpose(t.select(c, 0), 1, 2),
                t.to(t.select(d, 0), FLOAT32),
                t.select(gate, 0) if kind == "silu" else None,
                t.select(dt_bias, 0),
            )
            outs.append(y if kind == "silu" else t.mul(y, self.apply_activation(t.select(gate, 0), kind)))
            if self.store is not None:
                _states.append(last_state)
            del last_state
        y = t.cat(outs, 1)
        self.states(steps["ssm_state"], (op.inner, op.state))
        return self.project(steps["out_proj"], t.transpose(y, 1, 2))

    # --- Mamba-2 ------------------------------------------------------------------------------------------------------

    @compared(PUBLISHED)
    def module_ChunkedScan(self, steps: Steps, x: Tensor) -> Tensor:
        norm: Norm | None = steps["norm"].options["spec"] if "norm" in steps else None
        has_fused_norm = norm is None or (norm.type == "rmsnorm" and norm.weight and not norm.has_bias)
        has_fused_kernel = 2 <= steps["conv1d"].options["kernel"] <= 4 and steps.acts[0] == "silu"
        return (self.mamba2 if has_fused_norm and has_fused_kernel else self.mamba2_of_steps)(steps, x)

    @compared(PUBLISHED, mamba2="steps")
    def mamba2(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs mamba_ssm/modules/mamba2.py:154 (`Mamba2.forward`)."""
        t, op, conv, out_proj = self.t, steps["scan"].op, steps["conv1d"], steps["out_proj"]
        assert isinstance(op, ChunkedScan)
        inner_width, heads = op.heads * op.head_dim, (op.heads,)
        group_width = exact_div(conv.outs[0].width - inner_width, 2)
        groups = exact_div(group_width, op.state)
        zxbcdt = self.project(steps["in_proj"], x)
        a, d, dt_bias = self.decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        norm = self.weight("norm.weight", (inner_width,)) if "norm" in steps else None
        if self.choices.mamba2 == "combined" and self.store is None:
            return mamba_ssm.mamba_split_conv1d_scan_combined(
                t,
                zxbcdt,
                self.filters(conv),
                self.bias(conv),
                dt_bias,
                a,
                d,
                op.chunk,
                op.head_dim,
                groups,
                norm,
                self.raw_weight(out_proj),
                self.bias(out_proj),
                self.accelerator,
            )
        z, xbc, dt = t.split(zxbcdt, [inner_width, inner_width + 2 * group_width, op.heads])
        self.keep_inputs(steps["conv_state"], t.transpose(xbc, 1, 2))
        xbc = t.transpose(self.causal_conv(conv, t.transpose(xbc, 1, 2)), 1, 2)
        x, b, c = t.split(xbc, [inner_width, group_width, group_width])
        y, _last_state = mamba_ssm.mamba_chunk_scan_with_state(
            t,
            self.by_head(x, op.head_dim),
            dt,
            a,
            self.by_head(b, op.state),
            self.by_head(c, op.state),
            op.chunk,
            d,
            self.by_head(z, op.head_dim) if norm is None else None,
            dt_bias,
            self.accelerator,
        )
        if self.store is None:
            del _last_state
        self.states(steps["ssm_state"], (op.heads, op.head_dim, op.state))
        y = t.flatten(y, 2)
        if norm is not None:
            y = mamba_ssm.rmsnorm_fn(t, y, norm, z, groups, self.accelerator)
        return self.project(out_proj, y)

    def mamba2_of_steps(self, steps: Steps, x: Tensor) -> Tensor:
        """Runs `Mamba2.forward` of the reference, with the library's convolution and scan."""
        t, op, conv, kind = self.t, steps["scan"].op, steps["conv1d"], steps.acts[0]
        assert isinstance(op, ChunkedScan)
        inner_width, heads = op.heads * op.head_dim, (op.heads,)
        group_width = exact_div(conv.outs[0].width - inner_width, 2)
        gate, xbc, dt = t.split(
            self.project(steps["in_proj"], x), [inner_width, inner_width + 2 * group_width, op.heads]
        )
        self.keep_inputs(steps["conv_state"], t.transpose(xbc, 1, 2))
        xbc = t.transpose(self.causal_conv(conv, t.transpose(xbc, 1, 2), kind), 1, 2)
        x, b, c = t.split(xbc, [inner_width, group_width, group_width])
        x, b, c = self.by_head(x, op.head_dim), self.by_head(b, op.state), self.by_head(c, op.state)
        a, d, dt_bias = self.decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        y, _last_state = mamba_ssm.mamba_chunk_scan_with_state(
            t, x, dt, a, b, c, op.chunk, d, None, dt_bias, self.accelerator
        )
        if self.store is None:
            del _last_state
        self.states(steps["ssm_state"], (op.heads, op.head_dim, op.state))
        y = t.flatten(y, 2)
        activated_gate = self.apply_activation(gate, kind)
        for step in steps.all:
            if step.verb == "mul":
                y = t.mul(y, activated_gate)
            if step.verb == "norm":
                y = self.norm(y, step.options["spec"], step.name, (inner_width,), exact_div(group_width, op.state))
        return self.project(steps["out_proj"], y)
