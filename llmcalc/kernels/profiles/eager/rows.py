"""Rows before others: zeros, and the previous row of each."""

from __future__ import annotations

from ....flow.program import Step
from ...lowering import Lowering


class RowKernels(Lowering):
    """What a causal convolution and values of the previous token read."""

    def do_padded(self, step: Step) -> None:
        """torch pads channels before rows."""
        t, out = self.t, step.outs[0]
        x = t.transpose(self.flat(step.ins[0]), 1, 2)
        self.set(out, t.transpose(t.pad(x, x.shape[2] + step.how["more"]), 1, 2))

    def do_zeros(self, step: Step) -> None:
        out = step.outs[0]
        self.set(out, self.t.new(self.shape(out), self.get(step.ins[0]).dtype))

    def do_delayed(self, step: Step) -> None:
        x, first = (self.get(value) for value in step.ins)
        self.set(step.outs[0], self.t.cat([first, self.t.slice(x, x.shape[1] - 1, 1)], 1))
