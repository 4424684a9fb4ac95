"""Mamba-2 on a rank: Megatron-Core's mixer with the kernels of mamba_ssm.

Source: Megatron-LM, megatron/core/ssm/mamba_mixer.py, `_ssm_training`.
"""

from __future__ import annotations

from collections.abc import Callable

from ....algebra import exact_div
from ....flow.program import Alternatives, Scope, Step
from ....ops import ChunkedScan
from ...published import mamba_ssm
from ...tensor import FLOAT32, Tensor
from .latent import LatentKernels


class MambaKernels(LatentKernels):
    """A mixer as one: its convolution, scan and gate are one function, its norm another."""

    def whole(self, scope: Scope) -> Callable[[], None] | None:
        found = [item for item in scope.items if isinstance(item, Alternatives)]
        scans = [step for item in found for step in next(iter(item.branches.values())).steps()]
        scan = next((step for step in scans if isinstance(step.op, ChunkedScan)), None)
        if scan is None:
            return super().whole(scope)
        if self.how.context > 1:
            raise self.unsupported("no kernels for a scan over several ranks of a sequence; expected no --cp")
        return lambda: self._mixed(scope, scan)

    def _mixed(self, scope: Scope, scan: Step) -> None:
        t, op = self.t, scan.op
        assert isinstance(op, ChunkedScan)
        steps = {step.name: step for step in scope.items if isinstance(step, Step) and step.name}
        entering, leaving, conv = steps["in_proj"], steps["out_proj"], steps["conv1d"]
        self.do_linear(entering)
        value = entering.outs[0]
        zxbcdt = self.get(value)
        self.forget(value.storage)
        rows, width = zxbcdt.shape
        batch = self.sight.batch
        zxbcdt = t.reshape(self.by_sequence(zxbcdt), (batch, rows // batch, width))
        inner, channels = op.heads * op.head_dim, conv.outs[0].width
        groups = exact_div(exact_div(channels - inner, 2), op.state)
        filters = self.weight("conv1d.weight", (channels, 1, conv.how["kernel"]))
        bias = self.weight("conv1d.bias", (channels,)) if conv.how["bias"] else None
        steepness = t.to(self.weight("dt_bias", (op.heads,)), FLOAT32)
        decay = t.scale(t.exp(t.to(self.weight("A_log", (op.heads,)), FLOAT32)), "neg")
        y = mamba_ssm.mamba_split_conv1d_scan_combined(
            t,
            zxbcdt,
            filters,
            bias,
            steepness,
            decay,
            self.weight("D", (op.heads,)),
            op.chunk,
            op.head_dim,
            groups,
            None,
            None,
            None,
        )
        del zxbcdt
        y = self.by_sequence(t.reshape(y, (rows, inner)))
        if "norm" in steps:
            y = mamba_ssm.rmsnorm_fn(t, y, self.weight("norm.weight", (inner,)), None, groups)
        assert scope.gives is not None or leaving.outs
        self.bind(leaving.outs[0], self.row(leaving, y))

    def by_sequence(self, x: Tensor) -> Tensor:
        """[tokens, batch] ↔ [batch, tokens]: a copy, but for a batch of one. So is the gradient a view."""
        return x if self.sight.batch == 1 else self.copied(x)
