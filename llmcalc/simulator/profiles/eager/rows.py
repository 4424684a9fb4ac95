"""Rows that precede a pass's first row: zero padding of convolutions, and the previous token of each token."""

from __future__ import annotations

from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ...lowering import Lowering


class RowKernels(Lowering):
    """The inputs of causal convolutions, and values of the previous token."""

    @compared(BY_TORCH)
    def do_padded(self, step: Step) -> None:
        """Pads the input of a causal convolution, and caches the rows that the next pass needs."""
        t, out, padding_rows, state = self.t, step.outs[0], step.options["more"], step.options["state"]
        x = t.transpose(self.flat(step.ins[0]), 1, 2)
        cached_rows = self.frames[-1].local_tensors["held"] = self.cached(state)
        padded_input = t.pad(x, x.shape[2] + padding_rows) if cached_rows is None else t.cat([cached_rows[0], x])
        self.keep(state, t.slice(padded_input, padding_rows))
        self.set(out, t.transpose(padded_input, 1, 2))

    @compared(BY_TORCH)
    def do_zeros(self, step: Step) -> None:
        out = step.outs[0]
        cached_rows = self.frames[-1].local_tensors["held"] = self.cached(step.options["state"])
        if cached_rows is not None:
            self.absent.add(id(out))
        else:
            self.set(out, self.t.new(self.shape(out), self.get(step.ins[0]).dtype))

    @compared(BY_TORCH)
    def do_resumed(self, step: Step) -> None:
        cached_rows, out = self.cached(step.options["state"]), step.outs[0]
        if cached_rows is not None:
            self.bind(out, self.t.unsqueeze(cached_rows[step.options["index"]], 1))
        elif self.missing(step.ins[0]):
            self.absent.add(id(out))
        else:
            self.bind(out, self.get(step.ins[0]))

    @compared(BY_TORCH)
    def do_delayed(self, step: Step) -> None:
        x, first_row = (self.get(value) for value in step.ins)
        self.set(step.outs[0], self.t.cat([first_row, self.t.slice(x, x.shape[1] - 1, 1)], 1))
