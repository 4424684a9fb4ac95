"""Models with several residual streams: AltUp and hyper-connections."""

from __future__ import annotations

from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.program import Step
from ...lowering import Lowering
from ...tensor import FLOAT32, Tensor


class StreamKernels(Lowering):
    """Kernels that split, mix and merge residual streams, [batch, rows, streams, width]."""

    @compared(BY_TORCH)
    def do_take(self, step: Step) -> None:
        value, out = step.ins[0], step.outs[0]
        x = self.get(value)
        if len(out.axes) < len(value.axes):
            self.set(out, self.t.select(x, 2))
        else:
            self.set(out, self.t.slice(x, out.axes[0].size, 2))

    def do_received(self, step: Step) -> None:
        """Allocates the states of another model, which need no gradient."""
        self.set(step.outs[0], self.t.new(self.shape(step.outs[0]), self.get(step.ins[0]).dtype))

    @compared(BY_TORCH)
    def do_copies(self, step: Step) -> None:
        x, out = self.t.unsqueeze(self.get(step.ins[0]), 2), step.outs[0]
        self.set(out, self.t.expand(x, self.shape(out)))

    @compared(BY_TORCH)
    def do_stack(self, step: Step) -> None:
        first_stream, other_streams = step.ins
        outputs = self.stacks.pop(id(other_streams))
        self.set(step.outs[0], self.t.stack([self.get(first_stream), *outputs], 2))

    @compared(BY_TORCH)
    def core_Product(self, step: Step) -> None:
        """Multiplies the streams of each row by its matrix of weights, or by vectors that all rows share."""
        t, (matrix, x) = self.t, map(self.get, step.ins)
        if len(x.shape) == 1:
            self.set(step.outs[0], t.select(t.linear(matrix, t.unsqueeze(x, 0)), 3))
        elif len(x.shape) == 2:
            self.set(step.outs[0], t.transpose(t.linear(matrix, x), -1, -2))
        else:
            self.set(step.outs[0], t.matmul(matrix, x))

    @compared(BY_TORCH)
    def core_StreamMix(self, step: Step) -> None:
        matrix, x = map(self.get, step.ins)
        self.set(step.outs[0], self.t.matmul(self.t.transpose(matrix, -1, -2), x))

    @compared(BY_TORCH)
    def core_StreamOffsets(self, step: Step) -> None:
        """Applies a scale per kind of weight and an offset per weight (Offsets.forward)."""
        t, sizes = self.t, [out.width for out in step.outs]
        weight_parts = t.split(self.get(step.ins[0]), sizes)
        base, scale = self.weight(f"{step.name}.base", (sum(sizes),)), self.weight(f"{step.name}.scale", (len(sizes),))
        for out, weight_logits, scale_element, offset in zip(
            step.outs, weight_parts, t.unbind(scale), t.split(base, sizes), strict=True
        ):
            self.set(out, t.add(t.mul(weight_logits, scale_element), offset))

    @compared(BY_TORCH)
    def do_root_mean_square(self, step: Step) -> None:
        t, x = self.t, self.get(step.ins[0])
        size = t.sqrt(t.clamp(t.mean(t.square(t.to(x, FLOAT32)))))
        self.set(step.outs[0], t.to(size, x.dtype))

    @compared(BY_TORCH)
    def do_sinkhorn(self, step: Step) -> None:
        """Runs HyperLayer's Connection.forward: each division allocates a new matrix."""
        matrix = self.take(step, step.ins[0])
        matrix = self._divide_by_sums(matrix, -2)
        for _ in range(step.options["steps"] - 1):
            matrix = self._divide_by_sums(matrix, -1)
            matrix = self._divide_by_sums(matrix, -2)
        self.set(step.outs[0], matrix)

    def _divide_by_sums(self, matrix: Tensor, axis: int) -> Tensor:
        t = self.t
        return t.div(matrix, t.add_number(t.sum(matrix, axis, keep=True)))
