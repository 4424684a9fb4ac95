"""Recurrent parts as they are trained: by the kernels that their authors publish, not by the reference's loop.

A part whose published module computes the same runs as that module does, line by line: Mamba and Mamba-2 of mamba_ssm,
gated DeltaNet and Kimi delta attention of fla. Another part (extra norms, another activation) runs its own steps, and
the published kernel of its scan among them. All parameters are in the run's type, as after `model.to(dtype)`. The local
variables of a method stand for those of the published forward: each keeps its tensor until the module returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ....components.norm import Norm
from ....flow.program import Alternatives, Item, Scope, Step
from ....ops import ChunkedScan, DeltaRule, SelectiveScan
from ...published import causal_conv1d, fla, mamba_ssm
from ...published.function import H100, Device
from ...tensor import FLOAT32, Tensor
from .basic import BasicKernels


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


class ScanKernels(BasicKernels):
    """Recurrences over the tokens.

    device: what kernels ask of the device that runs them.
    split_scan: whether Mamba-2 runs as one function that saves little (mamba_ssm's `use_mem_eff_path`), true by default.
    """

    device: Device = H100
    split_scan: bool = True

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        """The kernels that run a module at once: those of the scan in it."""
        for step in own_steps(scope):
            run = getattr(self, f"module_{type(step.op).__name__}", None) if step.verb == "core" else None
            if run is not None:
                return lambda: self._at_once(scope, run)
        return super().whole(scope)

    def _at_once(self, scope: Scope, run: Callable[[Steps, Tensor], Tensor]) -> None:
        """Runs all steps of a module as `run` does, and binds the output of the last."""
        assert scope.reads is not None
        if self.graph.autocast is not None:
            raise self.unsupported("no published kernels under autocast")
        if self.store is not None:
            raise self.unsupported("no published kernels for a pass that keeps states")
        steps = Steps(scope)
        self.set(steps.all[-1].outs[0], run(steps, self.flat(scope.reads)))
        for step in every_step(scope.items):
            for value in step.ins:
                if self.last.get(id(value.storage)) == id(step):
                    self.forget(value.storage)

    # --- what the modules share ---------------------------------------------------------------------------------------

    def projected(self, step: Step, x: Tensor) -> Tensor:
        """A linear layer."""
        return self.t.linear(x, self.matrix(step), self.bias(step))

    def bias(self, step: Step) -> Tensor | None:
        """The bias of a linear layer or of a convolution."""
        return self.weight(f"{step.name}.bias", (step.outs[0].width,)) if step.how["bias"] else None

    def filters(self, step: Step) -> Tensor:
        """The weight of a convolution that keeps channels apart: rearrange(weight, "d 1 w -> d w")."""
        width, kernel = step.outs[0].width, step.how["kernel"]
        return self.t.reshape(self.weight(f"{step.name}.weight", (width, 1, kernel)), (width, kernel))

    def by_head(self, x: Tensor, size: Any) -> Tensor:
        """rearrange(x, "... (h d) -> ... h d")."""
        return self.t.unflatten(x, -1, (x.shape[-1] // size, size))

    def decay(self, shape: tuple[Any, ...]) -> Tensor:
        """A = -exp(A_log.float())."""
        return self.t.scale(self.t.exp(self.t.to(self.weight("A_log", shape), FLOAT32)), "neg")

    def causal_conv(self, step: Step, x: Tensor, kind: str | None = None) -> Tensor:
        """A causal convolution and the activation after it, none by default. x: [batch, channels, tokens]."""
        kernel = step.how["kernel"]
        if not 2 <= kernel <= 4:
            raise self.unsupported(f"causal_conv1d has kernels for 2 to 4 tokens, not for {kernel}", step.name)
        y = causal_conv1d.causal_conv1d_fn(self.t, x, self.filters(step), self.bias(step))
        return y if kind in (None, "silu") else self.activated(y, kind)

    # --- Mamba ---------------------------------------------------------------------------------------------------------

    def module_SelectiveScan(self, steps: Steps, x: Tensor) -> Tensor:
        if "dt_norm" in steps or steps["x_proj"].verb != "linear" or set(steps.acts) != {"silu", "softplus"}:
            raise self.unsupported("not yet")
        return self.mamba(steps, x)

    def mamba(self, steps: Steps, x: Tensor) -> Tensor:
        """mamba_ssm/modules/mamba_simple.py:119 (`Mamba.forward`)."""
        t, op, conv, out_proj = self.t, steps["scan"].op, steps["conv1d"], steps["out_proj"]
        assert isinstance(op, SelectiveScan)
        batch = x.shape[0]
        hidden = t.flatten(t.transpose(t.transpose(x, 1, 2), 0, 1), 1, 2)
        xz = mamba_ssm.split_tokens(t, t.mm(self.matrix(steps["in_proj"]), hidden), batch)
        del hidden
        bias = self.bias(steps["in_proj"])
        if bias is not None:
            xz = t.add(xz, t.unsqueeze(bias, 1))
        a = self.decay((op.inner, op.state))
        d, dt_bias = self.weight("D", (op.inner,)), self.bias(steps["dt_proj"])
        assert dt_bias is not None
        if self.bias(out_proj) is None:
            return mamba_ssm.mamba_inner_fn(
                t,
                xz,
                self.filters(conv),
                self.bias(conv),
                self.matrix(steps["x_proj"]),
                self.matrix(steps["dt_proj"]),
                self.matrix(out_proj),
                a,
                t.to(d, FLOAT32),
                t.to(dt_bias, FLOAT32),
            )
        u, z = mamba_ssm.halves(t, xz)
        u = self.causal_conv(conv, u)
        x_dbl = t.linear(mamba_ssm.tokens_first(t, u), self.matrix(steps["x_proj"]))
        dt, b, c = t.split(x_dbl, [steps["x_proj"].outs[0].width - 2 * op.state, op.state, op.state])
        dt = t.mm(self.matrix(steps["dt_proj"]), t.transpose(dt, 0, 1))
        dt = mamba_ssm.split_tokens(t, dt, batch)
        b, c = self._dense(b, batch), self._dense(c, batch)
        d, dt_bias = t.to(d, FLOAT32), t.to(dt_bias, FLOAT32)
        y = mamba_ssm.selective_scan_fn(t, u, dt, a, b, c, d, z, dt_bias)
        del d, dt_bias
        y = t.transpose(y, 1, 2)
        return self.projected(out_proj, y)

    def _dense(self, x: Tensor, batch: Any) -> Tensor:
        """rearrange(x, "(b l) dstate -> b dstate l").contiguous()."""
        return self.t.contiguous(self.t.transpose(self.t.unflatten(x, 0, (batch, x.shape[0] // batch)), 1, 2))

    # --- Mamba-2 -------------------------------------------------------------------------------------------------------

    def module_ChunkedScan(self, steps: Steps, x: Tensor) -> Tensor:
        norm: Norm | None = steps["norm"].how["spec"] if "norm" in steps else None
        plain = norm is None or (norm.type == "rmsnorm" and norm.weight and not norm.has_bias)
        if not plain or set(steps.acts) != {"silu"}:
            raise self.unsupported("not yet")
        return self.mamba2(steps, x)

    def mamba2(self, steps: Steps, x: Tensor) -> Tensor:
        """mamba_ssm/modules/mamba2.py:154 (`Mamba2.forward`)."""
        t, op, conv, out_proj = self.t, steps["scan"].op, steps["conv1d"], steps["out_proj"]
        assert isinstance(op, ChunkedScan)
        inner, heads = op.heads * op.head_dim, (op.heads,)
        shared = (conv.outs[0].width - inner) // 2
        groups = shared // op.state
        zxbcdt = self.projected(steps["in_proj"], x)
        a, d, dt_bias = self.decay(heads), self.weight("D", heads), self.weight("dt_bias", heads)
        norm = self.weight("norm.weight", (inner,)) if "norm" in steps else None
        if self.split_scan:
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
                self.matrix(out_proj),
                self.bias(out_proj),
                self.device,
            )
        z, xbc, dt = t.split(zxbcdt, [inner, inner + 2 * shared, op.heads])
        xbc = t.transpose(self.causal_conv(conv, t.transpose(xbc, 1, 2)), 1, 2)
        x, b, c = t.split(xbc, [inner, shared, shared])
        y = mamba_ssm.mamba_chunk_scan_combined(
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
            self.device,
        )
        y = t.flatten(y, 2)
        if norm is not None:
            y = mamba_ssm.rmsnorm_fn(t, y, norm, z, groups, self.device)
        return self.projected(out_proj, y)

    # --- the delta rules -----------------------------------------------------------------------------------------------

    def module_DeltaRule(self, steps: Steps, x: Tensor) -> Tensor:
        assert isinstance(steps["core"].op, DeltaRule)
        return (self.kimi_delta if steps["core"].op.by_channel else self.gated_delta)(steps, x)

    def gated_delta(self, steps: Steps, x: Tensor) -> Tensor:
        """fla/layers/gated_deltanet.py:190 (`GatedDeltaNet.forward`)."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        parts = [self.projected(steps[name], x) for name in ("q_proj", "k_proj", "v_proj")]
        widths = [part.shape[-1] for part in parts]
        qkv = t.cat(parts)
        del parts
        kernel = steps["conv1d"].how["kernel"]
        qkv_weight = t.cat([self._filter(name, n, kernel) for name, n in zip("qkv", widths, strict=True)], 0)
        qkv = fla.causal_conv1d(t, qkv, qkv_weight)
        q, k, v = t.split(qkv, widths)
        q, k, v = self.by_head(q, op.key_dim), self.by_head(k, op.key_dim), self.by_head(v, op.value_dim)
        beta = self.projected(steps["b_proj"], x)
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads,))
        o = fla.chunk_gated_delta_rule(
            t, q, k, v, self.projected(steps["a_proj"], x), beta, a_log, dt_bias, self.device
        )
        g = self.by_head(self.projected(steps["g_proj"], x), op.value_dim)
        o = fla.rms_norm_gated(t, o, g, self.weight("norm.weight", (op.value_dim,)), self.device)
        o = t.flatten(o, 2)
        return self.projected(steps["o_proj"], o)

    def _filter(self, name: str, width: Any, kernel: Any) -> Tensor:
        """The weight of one of the three convolutions of a delta rule's layer."""
        return self.t.reshape(self.weight(f"{name}_conv1d.weight", (width, 1, kernel)), (width, kernel))

    def kimi_delta(self, steps: Steps, x: Tensor) -> Tensor:
        """fla/layers/kda.py:186 (`KimiDeltaAttention.forward`)."""
        t, op = self.t, steps["core"].op
        assert isinstance(op, DeltaRule)
        q, k, v = (self._convolved(name, steps, x) for name in "qkv")
        g = self._gate("f", steps, x)
        beta = self.projected(steps["b_proj"], x)
        q, k, v, g = (self.by_head(each, op.key_dim) for each in (q, k, v, g))
        a_log, dt_bias = self.weight("A_log", (op.heads,)), self.weight("dt_bias", (op.heads * op.key_dim,))
        o = fla.chunk_kda(t, q, k, v, g, beta, a_log, dt_bias)
        weight = self.weight("norm.weight", (op.value_dim,))
        o = fla.rms_norm_gated(t, o, self.by_head(self._gate("g", steps, x), op.value_dim), weight, self.device)
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
