"""Recurrent parts as they are trained: by the kernels that their authors publish, not by the reference's loop.

A part whose published module computes the same runs as that module does, line by line. Another part (extra norms,
another activation) runs its own steps, and the published kernel of its scan among them. All parameters are in the run's
type, as after `model.to(dtype)`. The local variables of a method stand for those of the published forward: each keeps
its tensor until the module returns; one whose name begins with an underscore is only held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ....algebra import exact_div, is_zero
from ....components.base import BY_TORCH, PUBLISHED
from ....components.norm import Norm
from ....evidence import compared
from ....flow.program import Alternatives, Item, Scope, Step
from ....ops import BlockLinear, ChunkedScan, DecayScan, DeltaRule, LightningCore, MatrixMemory, SelectiveScan, State
from ....workload.rows import TOKENS
from ...autograd import record, recorded
from ...published import causal_conv1d, fla, lightning_attn, mamba_ssm, mlstm_kernels, rwkv
from ...published.function import H100, Accelerator, Optional
from ...strides import is_one
from ...tensor import BOOL, FLOAT32, INT64, Tensor
from .basic import BasicKernels
from .convolution import ConvolutionKernels


class Steps:
    """The steps of a module, without those of modules in it; of alternatives, the first branch.

    named: name → step. acts: the names of its activations, in their order.
    """

    def __init__(self, scope: Scope) -> None:
        self.all = list(own_steps(scope))
        self.named = {step.name: step for step in self.all if step.name}
        self.acts = [step.how["kind"] for step in self.all if step.verb == "act"]

    def __contains__(self, name: str) -> bool:
        return name in self.named

    def __getitem__(self, name: str) -> Step:
        return self.named[name]


class ScanKernels(ConvolutionKernels, BasicKernels):
    """Recurrences over the tokens.

    accelerator: what kernels ask of the device that runs them.
    left: what a module keeps after it ran, until it runs again.
    """

    accelerator: Accelerator = H100

    def __init__(self, *run: Any, **how: Any) -> None:
        super().__init__(*run, **how)
        self.left: dict[Any, Tensor] = {}

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        """The kernels that run a module at once: those of the scan in it."""
        for step in own_steps(scope):
            if step.verb not in ("core", "scan"):
                continue
            kind = type(step.op).__name__ if step.verb == "core" else step.how.get("kind", "")
            run = getattr(self, f"{'one' if self.one_further else 'module'}_{kind}", None)
            if run is not None:
                return lambda: self.at_once(scope, run)
        return super().whole(scope)

    @property
    def one_further(self) -> bool:
        """Whether one token runs, after earlier passes."""
        return self.continues and is_one(self.sight.new(TOKENS))

    def at_once(self, scope: Scope, run: Callable[[Steps, Tensor], Tensor]) -> None:
        """Runs all steps of a module as `run` does, and binds the output of the last."""
        assert scope.reads is not None
        self._trains()
        steps = Steps(scope)
        self.set(steps.all[-1].outs[0], run(steps, self.flat(scope.reads)))
        for step in steps.all:
            if step.verb == "state" and self.store is not None and self.held(step.name) is None:
                raise self.unsupported("no kernels that keep this state", step.name)
        for step in every_step(scope.items):
            for value in step.ins:
                if self.last.get(id(value.storage)) == id(step):
                    self.forget(value.storage)

    def _trains(self) -> None:
        """Raises `Unsupported` where kernels would read other types."""
        if self.graph.autocast is not None:
            raise self.unsupported("no published kernels under autocast; expected weights in the type of activations")

    # --- what the modules share ---------------------------------------------------------------------------------------

    def projected(self, step: Step, x: Tensor) -> Tensor:
        """A linear layer."""
        return self.multiplied(step, x, self.matrix(step), self.bias(step))

    def raw(self, step: Step) -> Tensor:
        """The weight of a linear layer that a published module reads itself, instead of calling the layer."""
        if self.adapters is not None and (self.adapters.base != "none" or step.name in self.adapters.targets):
            raise self.unsupported(
                "the published module reads this weight itself; expected no adapter on it, and no base in 4 bits",
                step.name,
            )
        return self.matrix(step)

    def bias(self, step: Step) -> Tensor | None:
        """The bias of a linear layer or of a convolution."""
        return self.weight(f"{step.name}.bias", (step.outs[0].width,)) if step.how["bias"] else None

    def filters(self, step: Step) -> Tensor:
        """The weight of a convolution that keeps channels apart: rearrange(weight, "d 1 w -> d w")."""
        width, kernel = step.outs[0].width, step.how["kernel"]
        return self.t.reshape(self.weight(f"{step.name}.weight", (width, 1, kernel)), (width, kernel))

    def by_head(self, x: Tensor, size: Any) -> Tensor:
        """rearrange(x, "... (h d) -> ... h d")."""
        return self.t.unflatten(x, -1, (exact_div(x.shape[-1], size), size))

    def decay(self, shape: tuple[Any, ...]) -> Tensor:
        """A = -exp(A_log.float())."""
        return self.t.scale(self.t.exp(self.t.to(self.weight("A_log", shape), FLOAT32)), "neg")

    def causal_conv(self, step: Step, x: Tensor, kind: str | None = None) -> Tensor:
        """A causal convolution and the activation after it, none by default. x: [batch, channels, tokens].

        For a kernel that causal_conv1d does not have, torch's convolution of x with zeros on both sides.
        """
        t, kernel = self.t, step.how["kernel"]
        if 2 <= kernel <= 4:
            y = causal_conv1d.causal_conv1d_fn(t, x, self.filters(step), self.bias(step))
            return y if kind in (None, "silu") else self.activated(y, kind)
        weight = self.weight(f"{step.name}.weight", (step.outs[0].width, 1, kernel))
        y = t.slice(t.convolution(x, weight, self.bias(step), x.shape[2] + kernel - 1), x.shape[2])
        return y if kind is None else self.activated(y, kind)

    @compared(BY_TORCH)
    def do_conv(self, step: Step) -> None:
        if is_zero(getattr(step.op, "padding", 0)):
            super().do_conv(step)
            return
        self._trains()
        x, state = self.channels(step), step.how["state"]
        by_kernel = 2 <= step.how["kernel"] <= 4 and not self.one_further
        if self.store is None or not by_kernel:
            y = self.causal_conv(step, x) if self.store is None else self.conv_with_state(step, x, state)
        else:
            self.keep_inputs(self.own(state), x)
            y = self.causal_conv(step, x)
        self.set(step.outs[0], self.t.transpose(y, 1, 2))

    def conv_with_state(self, step: Step, x: Tensor, state: str, kept: Any = None) -> Tensor:
        """CausalConv1d.forward of the references. x: [batch, channels, tokens]."""
        t, kernel, held = self.t, step.how["kernel"], self.held(state)
        kept = kernel if kept is None else kept
        width, tokens = step.outs[0].width, x.shape[2]
        weight = self.conv_weight(step, (width, 1, kernel))
        if held is None:
            out = t.slice(t.convolution(x, weight, self.bias(step), tokens + kernel - 1), tokens)
            seen = t.pad(x, tokens + kept)
        else:
            seen = t.cat([held[0], x])
            out = t.convolution(t.slice(seen, tokens + kernel - 1), weight, self.bias(step), tokens)
        self.keep(state, t.slice(seen, kept))
        return out

    def conv_weight(self, step: Step, shape: Any) -> Tensor:
        """The filters of a convolution; those of queries, keys and values, which are three parameters, as one."""
        parts = [(*self.module_path(), f"{name}_conv1d.weight") for name in "qkv"]
        if parts[0] in self.weights:
            return self.in_pool(shape, self.dtype)
        return self.weight(f"{step.name}.weight", shape)

    def keep_inputs(self, state: Step, x: Tensor) -> None:
        """conv_state.copy_(F.pad(x, (kernel - tokens, 0))): the last inputs of a convolution, [batch, channels, ·]."""
        if self.store is not None:
            assert isinstance(state.op, State)
            kept = exact_div(state.op.size, x.shape[1])
            self.states(state, (x.shape[1], kept))
            _padded = self.t.new((*x.shape[:2], kept), x.dtype)

    def final_state(self, state: Step, *shape: Any) -> Optional:
        """The tensor that a kernel writes the last state into: that of the cache, or one that is copied there."""
        first = self.held(state.name) is None
        made = self.states(state, shape)
        if not made or first:
            return made[0] if made else None
        return self.graph.new((self.sight.batch, *shape), made[0].dtype)

    def channels(self, step: Step) -> Tensor:
        """The input of a convolution, [batch, channels, tokens]."""
        return self.t.transpose(self.flat(step.ins[0]), 1, 2)

    # --- Mamba --------------------------------------------------------------------------------------------------------

    @compared(PUBLISHED)
    def module_SelectiveScan(self, steps: Steps, x: Tensor) -> Tensor:
        if steps["x_proj"].verb == "experts":
            return self.mamba_of_heads(steps, x)
        fused = 2 <= steps["conv1d"].how["kernel"] <= 4 and steps.acts[0] == "silu"
        return self.mamba(steps, x) if fused and "dt_norm" not in steps else self.mamba_of_steps(steps, x)

    def mamba(self, steps: Steps, x: Tensor) -> Tensor:
        """mamba_ssm/modules/mamba_simple.py:119 (`Mamba.forward`)."""
        t, op, conv, out_proj = self.t, steps["scan"].op, steps["conv1d"], steps["out_proj"]
        assert isinstance(op, SelectiveScan)
        batch = x.shape[0]
        hidden = t.flatten(t.transpose(t.transpose(x, 1, 2), 0, 1), 1, 2)
        xz = mamba_ssm.split_tokens(t, t.mm(self.raw(steps["in_proj"]), hidden), batch)
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
                self.raw(steps["x_proj"]),
                self.raw(steps["dt_proj"]),
                self.raw(out_proj),
                a,
                t.to(d, FLOAT32),
                t.to(dt_bias, FLOAT32),
            )
        u, z = mamba_ssm.halves(t, xz)
        self.keep_inputs(steps["conv_state"], u)
        u = self.causal_conv(conv, u)
        x_dbl = self.projected(steps["x_proj"], mamba_ssm.tokens_first(t, u))
        dt, b, c = t.split(x_dbl, [steps["x_proj"].outs[0].width - 2 * op.state, op.state, op.state])
        dt = t.mm(self.raw(steps["dt_proj"]), t.transpose(dt, 0, 1))
        dt = mamba_ssm.split_tokens(t, dt, batch)
        b, c = self._dense(b, batch), self._dense(c, batch)
        d, dt_bias = t.to(d, FLOAT32), t.to(dt_bias, FLOAT32)
        y, _last = mamba_ssm.selective_scan_with_states(t, u, dt, a, b, c, d, z, dt_bias)
        del d, dt_bias
        if self.store is None:
            del _last
        self.states(steps["ssm_state"], (op.inner, op.state))
        y = t.transpose(y, 1, 2)
        return self.projected(out_proj, y)

    def _dense(self, x: Tensor, batch: Any) -> Tensor:
        """rearrange(x, "(b l) dstate -> b dstate l").contiguous()."""
        return self.t.contiguous(self.t.transpose(self.t.unflatten(x, 0, (batch, exact_div(x.shape[0], batch))), 1, 2))

    def mamba_of_steps(self, steps: Steps, x: Tensor) -> Tensor:
        """transformers/models/jamba/modeling_jamba.py (`JambaMambaMixer.forward`): norms on Δ, B and C. An activation
        that the kernels do not have runs after them.
        """
        t, op, kind = self.t, steps["scan"].op, steps.acts[0]
        assert isinstance(op, SelectiveScan)
        projected = t.transpose(self.projected(steps["in_proj"], x), 1, 2)
        a = self.decay((op.inner, op.state))
        u, gate = mamba_ssm.halves(t, projected)
        u = t.transpose(self._after_state(steps, u, kind), 1, 2)
        rank = steps["x_proj"].outs[0].width - 2 * op.state
        dt, b, c = t.split(self.projected(steps["x_proj"], u), [rank, op.state, op.state])
        if "dt_norm" in steps:
            dt, b, c = (self._normed_by(steps[name], y) for name, y in zip(NORMS, (dt, b, c), strict=True))
        dt = t.contiguous(t.transpose(t.linear(dt, self.raw(steps["dt_proj"])), 1, 2))
        dt_bias = self.bias(steps["dt_proj"])
        assert dt_bias is not None
        dt_bias = t.to(dt_bias, FLOAT32)
        d = t.to(self.weight("D", (op.inner,)), FLOAT32)
        u, b, c = t.transpose(u, 1, 2), t.transpose(b, 1, 2), t.transpose(c, 1, 2)
        y, _last = mamba_ssm.selective_scan_with_states(t, u, dt, a, b, c, d, gate if kind == "silu" else None, dt_bias)
        if self.store is None:
            del _last
        self.states(steps["ssm_state"], (op.inner, op.state))
        if kind != "silu":
            y = t.mul(y, self.activated(gate, kind))
        return self.projected(steps["out_proj"], t.transpose(y, 1, 2))

    def _after_state(self, steps: Steps, x: Tensor, kind: str) -> Tensor:
        """A convolution after the inputs that the cache keeps (transformers/cache_utils.py, `update_conv_state`)."""
        t, state, tokens = self.t, steps["conv_state"], x.shape[2]
        if self.store is None:
            return self.causal_conv(steps["conv1d"], x, kind)
        assert isinstance(state.op, State)
        kept, held = exact_div(state.op.size, x.shape[1]), self.held(state.name)
        (own,) = self.states(state, (x.shape[1], kept))
        if held is not None:
            x = t.cat([own, x])
        elif tokens < kept:
            x = t.new((*x.shape[:2], kept), x.dtype)
        return t.slice(self.causal_conv(steps["conv1d"], x, kind), tokens)

    def _normed_by(self, step: Step, x: Tensor) -> Tensor:
        return self.norm(x, step.how["spec"], step.name, x.shape[-1:])

    def mamba_of_heads(self, steps: Steps, x: Tensor) -> Tensor:
        """transformers/models/zamba/modeling_zamba.py (`ZambaMambaMixer.forward`): a scan for each head."""
        t, op, kind = self.t, steps["scan"].op, steps.acts[0]
        assert isinstance(op, SelectiveScan)
        heads = steps["x_proj"].how["experts"].size
        (batch, tokens), size = x.shape[:2], exact_div(op.inner, heads)
        rank = steps["x_proj"].outs[0].width - 2 * op.state
        projected = t.transpose(self.projected(steps["in_proj"], x), 1, 2)
        u, gate = t.split(t.unflatten(projected, 1, (op.inner, 2)), [1, 1], 2)
        u = t.contiguous(t.reshape(u, (batch, op.inner, tokens)))
        gate = t.transpose(t.reshape(gate, (batch, heads, size, tokens)), 0, 1)
        u = self._after_state(steps, u, kind)
        u = t.transpose(t.reshape(u, (batch, heads, size, tokens)), 0, 1)
        x_proj = self.weight("x_proj.weight", (heads, rank + 2 * op.state, size))
        low = t.transpose(t.matmul(t.unsqueeze(x_proj, 1), u), 2, 3)
        dt, b, c = t.split(low, [rank, op.state, op.state])
        dt_proj = self.weight("dt_proj.weight", (heads, size, rank))
        dt = t.matmul(t.unsqueeze(dt_proj, 1), t.transpose(dt, 2, 3))
        dt_bias = t.to(self.weight("dt_proj.bias", (heads, size)), FLOAT32)
        a, d = self.decay((heads, size, op.state)), self.weight("D", (heads, size))
        outs, _states = [], []
        for _ in range(heads):
            y, last = mamba_ssm.selective_scan_with_states(
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
            outs.append(y if kind == "silu" else t.mul(y, self.activated(t.select(gate, 0), kind)))
            if self.store is not None:
                _states.append(last)
            del last
        y = t.cat(outs, 1)
        self.states(steps["ssm_state"], (op.inner, op.state))
        return self.projected(steps["out_proj"], t.transpose(y, 1, 2))

    # --- Mamba-2 ------------------------------------------------------------------------------------------------------

    @compared(PUBLISHED)
    def module_ChunkedScan(self, steps: Steps, x: Tensor) -> Tensor:
        norm: Norm | None = steps["norm"].how["spec"] if "norm" in steps else None
        plain = norm is None or (norm.type == "rmsnorm" and norm.weight and not norm.has_bias)
        fused = 2 <= steps["conv1d"].how["kernel"] <= 4 and steps.acts[0] == "silu"
        return (self.mamba2 if plain and fused else self.mamba2_of_steps)(steps, x)

    @compared(PUBLISHED, mamba2="steps")
    def mamba2(self, steps: Steps, x: Tensor) -> Tensor:
        """mamba_ssm/modules/mamba2.py:154 (`Mamba2.forward`)."""
        t, op, conv, out_proj = self.t, steps["scan"].op, steps["conv1d"], steps["out_proj"]
        assert isinstance(op, ChunkedScan)
        inner, heads = op.heads * op.head_dim, (op.heads,)
        shared = exact_div(conv.outs[0].width - inner, 2)
        groups = exact_div(shared, op.state)
        zxbcdt = self.projected(steps["in_proj"], x)
        a, d, dt_bias = self.decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        norm = self.weight("norm.weight", (inner,)) if "norm" in steps else None
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
                self.raw(out_proj),
                self.bias(out_proj),
                self.accelerator,
            )
        z, xbc, dt = t.split(zxbcdt, [inner, inner + 2 * shared, op.heads])
        self.keep_inputs(steps["conv_state"], t.transpose(xbc, 1, 2))
        xbc = t.transpose(self.causal_conv(conv, t.transpose(xbc, 1, 2)), 1, 2)
        x, b, c = t.split(xbc, [inner, shared, shared])
        y, _last = mamba_ssm.mamba_chunk_scan_with_state(
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
            del _last
        self.states(steps["ssm_state"], (op.heads, op.head_dim, op.state))
        y = t.flatten(y, 2)
        if norm is not None:
            y = mamba_ssm.rmsnorm_fn(t, y, norm, z, groups, self.accelerator)
        return self.projected(out_proj, y)

    def mamba2_of_steps(self, steps: Steps, x: Tensor) -> Tensor:
        """`Mamba2.forward` of the reference, with the library's convolution and scan."""
        t, op, conv, kind = self.t, steps["scan"].op, steps["conv1d"], steps.acts[0]
        assert isinstance(op, ChunkedScan)
        inner, heads = op.heads * op.head_dim, (op.heads,)
        shared = exact_div(conv.outs[0].width - inner, 2)
        gate, xbc, dt = t.split(self.projected(steps["in_proj"], x), [inner, inner + 2 * shared, op.heads])
        self.keep_inputs(steps["conv_state"], t.transpose(xbc, 1, 2))
        xbc = t.transpose(self.causal_conv(conv, t.transpose(xbc, 1, 2), kind), 1, 2)
        x, b, c = t.split(xbc, [inner, shared, shared])
        x, b, c = self.by_head(x, op.head_dim), self.by_head(b, op.state), self.by_head(c, op.state)
        a, d, dt_bias = self.decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        y, _last = mamba_ssm.mamba_chunk_scan_with_state(
            t, x, dt, a, b, c, op.chunk, d, None, dt_bias, self.accelerator
        )
        if self.store is None:
            del _last
        self.states(steps["ssm_state"], (op.heads, op.head_dim, op.state))
        y = t.flatten(y, 2)
        opened = self.activated(gate, kind)
        for step in steps.all:
            if step.verb == "mul":
                y = t.mul(y, opened)
            if step.verb == "norm":
                y = self.norm(y, step.how["spec"], step.name, (inner,), exact_div(shared, op.state))
        return self.projected(steps["out_proj"], y)

    # --- the delta rules ----------------------------------------------------------------------------------------------

    @compared(PUBLISHED)
    def module_DeltaRule(self, steps: Steps, x: Tensor) -> Tensor:
        assert isinstance(steps["core"].op, DeltaRule)
        return (self.kimi_delta if steps["core"].op.by_channel else self.gated_delta)(steps, x)

    def gated_delta(self, steps: Steps, x: Tensor) -> Tensor:
        """fla/layers/gated_deltanet.py:190 (`GatedDeltaNet.forward`)."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        if self.store is None:
            parts = [self.projected(steps[name], x) for name in ("q_proj", "k_proj", "v_proj")]
            widths = [part.shape[-1] for part in parts]
            qkv = t.cat(parts)
            del parts
            kernel = steps["conv1d"].how["kernel"]
            qkv_weight = t.cat([self._filter(name, n, kernel) for name, n in zip("qkv", widths, strict=True)], 0)
            qkv = fla.causal_conv1d(t, qkv, qkv_weight)
            q, k, v = t.split(qkv, widths)
        else:
            self._keep_convolved(steps)
            q, k, v = (self._convolved(name, steps, x) for name in "qkv")
        q, k, v = self.by_head(q, op.key_dim), self.by_head(k, op.key_dim), self.by_head(v, op.value_dim)
        beta = self.projected(steps["b_proj"], x)
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads,))
        gate = self.projected(steps["a_proj"], x)
        _state = self.final_state(steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        if self.store is not None and x.shape[1] <= fla.FEW:
            o = fla.fused_recurrent(t, v)
        else:
            o = fla.chunk_gated_delta_rule(t, q, k, v, gate, beta, a_log, dt_bias, self.accelerator)
        if self.store is None:
            del gate
        g = self.by_head(self.projected(steps["g_proj"], x), op.value_dim)
        has_bias = steps["norm"].how["spec"].has_bias
        weight = self.weight("norm.weight", (op.value_dim,))
        bias = self.weight("norm.bias", (op.value_dim,)) if has_bias else None
        o = fla.layer_norm_gated(t, o, g, weight, bias, self.accelerator)
        o = t.flatten(o, 2)
        return self.projected(steps["o_proj"], o)

    def _keep_convolved(self, steps: Steps) -> None:
        """The last inputs of the three convolutions of a delta rule's layer, as one tensor."""
        conv = steps["conv1d"]
        self.states(steps["conv_state"], (conv.outs[0].width, conv.how["kernel"]))

    def _filter(self, name: str, width: Any, kernel: Any) -> Tensor:
        """The weight of one of the three convolutions of a delta rule's layer."""
        return self.t.reshape(self.weight(f"{name}_conv1d.weight", (width, 1, kernel)), (width, kernel))

    def kimi_delta(self, steps: Steps, x: Tensor) -> Tensor:
        """fla/layers/kda.py:186 (`KimiDeltaAttention.forward`)."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        self._keep_convolved(steps)
        q, k, v = (self._convolved(name, steps, x) for name in "qkv")
        g = self._gate("f", steps, x)
        beta = self.projected(steps["b_proj"], x)
        q, k, v, g = (self.by_head(each, op.key_dim) for each in (q, k, v, g))
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads * op.key_dim,))
        _state = self.final_state(steps["recurrent_state"], op.heads, op.key_dim, op.value_dim)
        few = self.store is not None and x.shape[1] <= fla.FEW
        o = fla.fused_recurrent(t, v) if few else fla.chunk_kda(t, q, k, v, g, beta, a_log, dt_bias)
        weight = self.weight("norm.weight", (op.value_dim,))
        o = fla.rms_norm_gated(t, o, self.by_head(self._gate("g", steps, x), op.value_dim), weight, self.accelerator)
        o = t.flatten(o, 2)
        return self.projected(steps["o_proj"], o)

    def _convolved(self, name: str, steps: Steps, x: Tensor) -> Tensor:
        y = self.projected(steps[f"{name}_proj"], x)
        return fla.causal_conv1d(self.t, y, self._filter(name, y.shape[-1], steps["conv1d"].how["kernel"]))

    def _gate(self, name: str, steps: Steps, x: Tensor) -> Tensor:
        """The projection of a gate: one linear layer, or two of low rank."""
        if f"{name}_proj" in steps:
            return self.projected(steps[f"{name}_proj"], x)
        return self.projected(steps[f"{name}_b_proj"], self.projected(steps[f"{name}_a_proj"], x))

    # --- lightning attention, mLSTM, RWKV-4 ---------------------------------------------------------------------------

    @compared(PUBLISHED)
    def module_LightningCore(self, steps: Steps, x: Tensor) -> Tensor:
        """`LightningAttention.forward` of the reference, with the library's kernel."""
        t, op, kind = self.t, steps["core"].op, steps.acts[0]
        assert isinstance(op, LightningCore)
        if self.continues:
            return self.by_token(steps, x)
        made = [self.projected(steps[name], x) for name in ("q_proj", "k_proj", "v_proj")]
        q, k, v = (t.transpose(self.by_head(self.activated(y, kind), op.head_dim), 1, 2) for y in made)
        del made
        out = lightning_attn.lightning_attn_func(t, q, k, v, t.new((op.heads, 1, 1), FLOAT32))
        if self.store is not None:  # the kernel returns no state
            self.states(steps["recurrent_state"], (op.heads, op.head_dim, op.head_dim))
            _state = t.matmul(t.transpose(t.like(k), -1, -2), v)
            del _state
        normed = self._normed_by(steps["norm"], t.flatten(t.transpose(out, 1, 2), 2))
        opened = t.function("sigmoid", self.projected(steps["g_proj"], x))
        return self.projected(steps["o_proj"], t.mul(opened, normed))

    def by_token(self, steps: Steps, x: Tensor) -> Tensor:
        """LightningReference.forward: one token after the other, from a state."""
        t, op, kind = self.t, steps["core"].op, steps.acts[0]
        assert isinstance(op, DecayScan)
        _held = self.held("recurrent_state")
        made = [self.projected(steps[name], x) for name in ("q_proj", "k_proj", "v_proj")]
        q, k, v = (t.transpose(self.by_head(self.activated(y, kind), op.head_dim), 1, 2) for y in made)
        del made
        out, state = self._tokens(q, k, v)
        self.keep("recurrent_state", state)
        normed = self._normed_by(steps["norm"], t.flatten(t.transpose(out, 1, 2), 2))
        gated = t.function("sigmoid", self.projected(steps["g_proj"], x))
        gated = t.mul(gated, normed)
        return self.projected(steps["o_proj"], gated)

    def _tokens(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Core.forward of the reference. The outputs of all tokens but the last are one tensor here."""
        t, (batch, heads, tokens, size) = self.t, q.shape
        slope = self._slopes(heads)
        held = self.held("recurrent_state")
        assert held is not None
        state, out = held[0], []
        q, k, v = (t.slice(y, 1, 2) for y in (q, k, v))
        if tokens > 1:
            out.append(t.new((batch, heads, tokens - 1, size), q.dtype))
        for _ in range(min(tokens, 2)):
            faded = t.mul(t.to(t.exp(t.scale(slope, "neg")), q.dtype), state)
            state = t.add(faded, t.matmul(t.transpose(k, -1, -2), v))
            del faded
        out.append(t.matmul(q, state))
        return t.cat(out, 2), state

    def _slopes(self, heads: Any) -> Tensor:
        return self.t.like(self.t.unsqueeze(self.t.unsqueeze(self.t.new((heads,), INT64), 1), 2), dtype=FLOAT32)

    @compared(PUBLISHED)
    def module_MatrixMemory(self, steps: Steps, x: Tensor) -> Tensor:
        """transformers/models/xlstm/modeling_xlstm.py (`xLSTMLayer.forward`), with the library's kernel."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, MatrixMemory)
        rows = x.shape[1] if self.store is None else op.chunk
        if not mlstm_kernels.supports(rows, op.chunk):
            found, least = f"chunks of {op.chunk} tokens in sequences of {x.shape[1]}", mlstm_kernels.LEAST
            raise self.unsupported(
                f"mlstm_kernels has no kernel for {found}; expected powers of two from {least}", "core"
            )
        q, k, v = (self.projected(steps[name], x) for name in "qkv")
        opened = self.projected(steps["ogate"], x)
        entry, forget = (self._capped(self.projected(steps[name], x)) for name in ("igate", "fgate"))
        q, k = (t.transpose(self.by_head(y, op.key_dim), 1, 2) for y in (q, k))
        v = t.transpose(self.by_head(v, op.value_dim), 1, 2)
        entry, forget = t.transpose(entry, 1, 2), t.transpose(forget, 1, 2)
        if self.store is None:
            h = mlstm_kernels.mlstm_chunkwise(t, q, k, v, entry, forget, op.chunk)
        else:
            h, _states = mlstm_kernels.mlstm_with_states(
                t, q, k, v, entry, forget, op.chunk, self._memory(steps["recurrent_state"])
            )
            self.states(steps["recurrent_state"], *self.memory_shapes(op))
        h = t.transpose(h, 1, 2)
        norm = steps["norm"]
        normed = self.norm(t.flatten(h, 2), norm.how["spec"], norm.name, (op.heads * op.value_dim,), op.heads)
        out = t.mul(t.function("sigmoid", opened), normed)
        return self.projected(steps["out_proj"], out)

    def memory_shapes(self, op: MatrixMemory) -> tuple[Any, ...]:
        """The memory, its normalizer and the largest exponent of each head."""
        return (op.heads, op.key_dim, op.value_dim), (op.heads, op.key_dim), (op.heads, 1)

    def _memory(self, state: Step) -> list[Tensor] | None:
        """The states in float32; None at the first token."""
        held = self.held(state.name)
        return None if held is None else [self.t.to(x, FLOAT32) for x in held]

    def _capped(self, x: Tensor) -> Tensor:
        """cap · tanh(x / cap)."""
        return self.t.scale(self.t.function("tanh", self.t.scale(x, "div")))

    @compared(PUBLISHED)
    def do_scan(self, step: Step) -> None:
        """An elementwise recurrence, by its kind: the method `scan_<kind>`."""
        run = getattr(self, f"{'next' if self.one_further else 'scan'}_{step.how['kind']}", None)
        if run is None:
            raise self.unsupported(f"no kernels for a scan of the kind '{step.how['kind']}'", step.name)
        self._trains()
        run(step)

    @compared(PUBLISHED)
    def scan_wkv(self, step: Step) -> None:
        key, value, first, decay = map(self.get, step.ins)
        state, size = self.own("recurrent_state"), key.shape[-1:]
        self.states(state, size, size, size)
        kept = self.store is not None
        self.set(step.outs[0], rwkv.rwkv_linear_attention(self.t, decay, first, key, value, kept))

    def own(self, name: str) -> Step:
        """The step of that name in the module that runs."""
        return next(step for step in own_steps(self.frames[-1].scope) if step.name == name)

    @compared(BY_TORCH)
    def do_shift(self, step: Step) -> None:
        t, x, state = self.t, self.get(step.ins[0]), step.how["state"]
        held = self.held(state)
        before = t.new((x.shape[0], 1, *x.shape[2:]), x.dtype) if held is None else held[0]
        self.keep(state, t.slice(x, 1, 1))
        self.set(step.outs[0], t.cat([before, t.slice(x, x.shape[1] - 1, 1)], 1))

    @compared(BY_TORCH)
    def do_complement(self, step: Step) -> None:
        self.set(step.outs[0], self.t.scale(self.get(step.ins[0]), "rsub"))

    # --- RG-LRU -------------------------------------------------------------------------------------------------------

    @compared(PUBLISHED)
    def module_rglru(self, steps: Steps, x: Tensor) -> Tensor:
        """transformers/models/recurrent_gemma/modeling_recurrent_gemma.py (`RecurrentGemmaRecurrentBlock.forward`).

        No library publishes a kernel of this scan: it runs as a loop over the tokens.
        """
        t = self.t
        y = self.activated(self.projected(steps["linear_y"], x), steps.acts[0])
        u = t.transpose(self.projected(steps["linear_x"], x), 1, 2)
        conv = steps["conv_1d"]
        weight = self.weight("conv_1d.weight", (conv.outs[0].width, 1, conv.how["kernel"]))
        self.states(steps["recurrent_state"], (conv.outs[0].width,))
        self.keep_inputs(steps["conv_state"], u)
        u = t.convolution(u, weight, self.bias(conv), u.shape[2] + conv.how["kernel"] - 1)
        u = self._rglru(t.transpose(t.slice(u, x.shape[1]), 1, 2), steps["input_gate"])
        out = t.mul(u, y)
        return self.projected(steps["linear_out"], out)

    def _rglru(self, u: Tensor, gate: Step) -> Tensor:
        """`RecurrentGemmaRglru.forward`."""
        t, (batch, tokens, width) = self.t, u.shape
        assert isinstance(gate.op, BlockLinear)
        blocks = gate.op.blocks
        size = exact_div(width, blocks)
        reset = t.new((1, tokens, 1), BOOL)
        parts = t.transpose(t.reshape(u, (batch * tokens, blocks, size)), 0, 1)

        def gated(name: str) -> tuple[Tensor, Tensor]:
            bias = t.unsqueeze(self.weight(f"{name}.bias", (blocks, size)), 1)
            res = t.baddbmm(bias, parts, self.weight(f"{name}.weight", (blocks, size, size)))
            return res, t.function("sigmoid", t.reshape(t.transpose(res, 0, 1), (batch, tokens, width)))

        _res, input_gate = gated("input_gate")
        _res, recurrent_gate = gated("recurrent_gate")
        param = self.weight("recurrent_param", (width,))
        log_gate = t.mul(t.scale(recurrent_gate), t.function("softplus", param))
        recurrent_gate = t.exp(log_gate)
        square = t.exp(t.scale(log_gate))
        gated_inputs = t.mul(u, input_gate)
        multiplier = self._bounded_sqrt(t.scale(square, "rsub"))
        multiplier = t.add(reset, t.mul(t.like(reset), multiplier))
        x = t.mul(gated_inputs, multiplier)
        return self._loop(x, recurrent_gate, reset)

    def _bounded_sqrt(self, x: Tensor) -> Tensor:
        """`SqrtBoundDerivative`."""
        t = self.t

        def back(g: Tensor, _: Any, x: Tensor) -> list[Tensor]:
            clipped = t.like(t.like(x))
            return [t.like(g, t.like(clipped))]

        return record(t.graph, "SqrtBoundDerivative", (x,), t.like(x), back, x)

    def _loop(self, x: Tensor, gate: Tensor, reset: Tensor) -> Tensor:
        """`RecurrentGemmaRglru._rnn_scan`: one token after the other. The module keeps the last state."""
        t, (batch, tokens, width) = self.t, x.shape
        gate = t.mul(gate, t.like(reset))
        state, states = t.new((batch, width), FLOAT32), t.like(x)
        if tokens > ONE_BY_ONE:
            states, state = self._first_tokens(x, gate, states, state, tokens - ONE_BY_ONE)
        for _ in range(min(tokens, ONE_BY_ONE)):
            state = t.mul(t.to(t.select(gate, 1), FLOAT32), state)
            state = t.add(state, t.to(t.select(x, 1), FLOAT32))
            states = t.written(states, t.to(state, x.dtype))
        if self.store is None:
            self.left[self.module_path()] = state
        return states

    def _first_tokens(
        self, x: Tensor, gate: Tensor, states: Tensor, state: Tensor, tokens: Any
    ) -> tuple[Tensor, Tensor]:
        """The first tokens of the loop at once: what they keep, and one gradient of all of x and one of the gate.

        The most is held while the last tokens run, and while their gradients are computed.
        """
        graph, (batch, _, width) = self.graph, x.shape

        def back(g: Tensor, _: Any, *__: Tensor) -> list[Tensor]:
            return [graph.new(whole, dtype)]

        whole, dtype = x.shape, x.dtype
        made = Tensor(states.shape, states.dtype, states.storage, states.strides)
        if recorded(graph, (x,)):
            kept = [graph.new((batch, tokens - 1, width), FLOAT32) for _ in range(2)]  # gates and states
            record(graph, "tokens", (x,), made, back, state, *kept)
        return made, record(graph, "token", (gate,), graph.new(state.shape, state.dtype), back)


ONE_BY_ONE = 4
"""The tokens at the end of a loop that run one after the other."""

NORMS = "dt_norm", "b_norm", "c_norm"
"""The norms on Δ, B and C."""


def own_steps(scope: Scope) -> Iterator[Step]:
    """The steps of a module, without those of modules in it; of alternatives, those of the first branch."""
    for item in scope.items:
        if isinstance(item, Alternatives):
            yield from own_steps(next(iter(item.branches.values())))
        elif isinstance(item, Step):
            yield item


def every_step(items: list[Item]) -> Iterator[Step]:
    """Every step of these items, of all alternatives."""
    for item in items:
        if isinstance(item, Alternatives):
            for branch in item.branches.values():
                yield from every_step(branch.items)
        elif isinstance(item, Scope):
            yield from every_step(item.items)
        else:
            yield item
