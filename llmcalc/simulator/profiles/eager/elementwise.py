"""Elementwise steps on values with different axes, sums over an axis, added positions, and the xIELU activation."""

from __future__ import annotations

from ....algebra import Number, ceil_div
from ....components.base import BY_TORCH
from ....evidence import compared
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ....workload.rows import ONCE
from ...tensor import FLOAT32, INT64, Tensor
from .basic import BasicKernels


class ElementwiseKernels(BasicKernels):
    """Steps whose operands are matched by the names of their axes."""

    @compared(BY_TORCH)
    def do_add(self, step: Step) -> None:
        self.set(step.outs[0], self.t.add(*self._align_axes(step)))

    @compared(BY_TORCH)
    def do_mul(self, step: Step) -> None:
        self.set(step.outs[0], self.t.mul(*self._align_axes(step)))

    @compared(BY_TORCH)
    def do_sub(self, step: Step) -> None:
        self.set(step.outs[0], self.t.sub(*self._align_axes(step)))

    @compared(BY_TORCH)
    def do_div(self, step: Step) -> None:
        self.set(step.outs[0], self.t.div(*self._align_axes(step)))

    def _align_axes(self, step: Step) -> tuple[Tensor, Tensor]:
        """Returns both operands, with size 1 along axes of the result that they lack."""
        a, b = (self.get(value) for value in step.ins)
        most_axes, axes = max(len(a.shape), len(b.shape)), step.outs[0].axes
        return self._align_axes_of(step.ins[0], a, axes, most_axes), self._align_axes_of(
            step.ins[1], b, axes, most_axes
        )

    def _align_axes_of(self, value: Value, x: Tensor, axes: Shape, most_axes: int) -> Tensor:
        if value.rows is ONCE and value.axes:
            for axis in reversed(axes):
                if axis in value.axes:
                    break
                x = self.t.unsqueeze(x, -1)
            return x
        if value.rows is ONCE or len(value.axes) == len(axes):
            return x
        value_axes, leading_axes = list(value.axes), len(x.shape) - len(value.axes)
        missing_axes = [
            i for i, axis in enumerate(axes) if not (value_axes and value_axes[0] == axis and value_axes.pop(0))
        ]
        if value_axes:  # axes of other names (a gate per head) come first
            missing_axes = list(range(len(value.axes), most_axes - leading_axes))
        for i in missing_axes:
            x = self.t.unsqueeze(x, leading_axes + i)
        return x

    @compared(BY_TORCH)
    def do_plus(self, step: Step) -> None:
        self.set(step.outs[0], self.t.add_number(self.get(step.ins[0])))

    @compared(BY_TORCH)
    def do_sum(self, step: Step) -> None:
        """Computes the sum or mean over one axis."""
        value, out = step.ins[0], step.outs[0]
        (summed_axis,) = [i for i, axis in enumerate(value.axes) if axis not in out.axes]
        reduce = self.t.mean if step.options["mean"] else self.t.sum
        x = self.get(value)
        self.set(out, reduce(x, len(x.shape) - len(value.axes) + summed_axis, keep=False))

    # --- positions ---------------------------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_added_sinusoids(self, step: Step) -> None:
        """Computes sinusoids [rows, width] in float32 (SinusoidalReference.forward)."""
        out = step.outs[0]
        self.set(out, self._compute_sinusoids(self.run_config.new(out.rows), out.width))

    @compared(BY_TORCH)
    def do_in_format_of(self, step: Step) -> None:
        x, value = map(self.get, step.ins)
        self.bind(step.outs[0], self.t.to(value, x.dtype))

    def _compute_sinusoids(self, rows: Number, width: Number) -> Tensor:
        t, positions = self.t, self.t.new((rows,), INT64)
        half_width = ceil_div(width, 2)
        exponents = t.like(t.new((half_width,), FLOAT32))
        angles = t.mul(t.to(t.unsqueeze(positions, 1), FLOAT32), t.like(t.like(exponents)))
        del exponents
        return t.slice(t.cat([t.function("sin", angles), t.function("cos", angles)]), width)

    # --- activations with parameters ----------------------------------------------------------------------------------

    @compared(BY_TORCH)
    def do_act(self, step: Step) -> None:
        if step.options["kind"] == "xielu":
            self.set(step.outs[0], self.xielu(*map(self.get, step.ins)))
        elif step.options["kind"] == "log_position":
            x, *factors = map(self.get, step.ins)
            self.set(step.outs[0], self.t.transpose(self.scale_by_position(self.t.transpose(x, 1, 2), *factors), 1, 2))
        else:
            super().do_act(step)

    def xielu(self, x: Tensor, alpha: Tensor, constants: Tensor) -> Tensor:
        """Runs XIELU.forward."""
        t = self.t
        beta, eps = t.unbind(constants)
        positive_alpha, negative_alpha = t.unbind(t.function("softplus", alpha))
        positive = t.compare(x)
        squared_term = t.mul(t.mul(positive_alpha, x), x)
        negative = t.mul(t.add(beta, negative_alpha), t.sub(t.expm1(t.minimum(x, eps)), x))
        output = t.where(positive, squared_term, negative)
        del positive, squared_term, negative
        return t.add(output, t.mul(beta, x))

    def scale_by_position(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """Runs PositionScale.forward. x: [batch, heads, tokens, size]."""
        t = self.t
        logarithms = t.to(t.function("log", t.to(t.add_number(self.span(x.shape[-2])), FLOAT32)), x.dtype)
        factor = t.add(t.mul(t.unsqueeze(scale, 1), logarithms), t.unsqueeze(bias, 1))
        return t.mul(x, t.unsqueeze(factor, -1))
