"""Elementwise steps on values with different axes, sums over an axis, added positions, and the xIELU activation."""

from __future__ import annotations

from ....algebra import Number, ceil_div
from ....components.base import TORCH_WITNESS
from ....evidence import kernels_compared
from ....flow.axis import Shape
from ....flow.program import Step
from ....flow.value import Value
from ....workload.rows import NO_ROWS
from ...tensor import FLOAT32, INT64, Tensor
from .basic import BasicKernels


@kernels_compared(TORCH_WITNESS)
class ElementwiseKernels(BasicKernels):
    """Elementwise steps whose operands are aligned by axis names."""

    def do_add(self, operation: Step) -> None:
        self.store_tensor(operation.output_values[0], self.aten.add(*self._align_axes(operation)))

    def do_mul(self, operation: Step) -> None:
        a, b = self._align_axes(operation)
        product, dtype = self.aten.mul(a, b), a.dtype
        if operation.options["float32"]:
            del a, b
            self.release_last_reads(operation, operation.input_values)
            product = self.aten.to(product, dtype)
        self.store_tensor(operation.output_values[0], product)

    def do_sub(self, operation: Step) -> None:
        self.store_tensor(operation.output_values[0], self.aten.sub(*self._align_axes(operation)))

    def do_div(self, operation: Step) -> None:
        self.store_tensor(operation.output_values[0], self.aten.div(*self._align_axes(operation)))

    def _align_axes(self, operation: Step) -> tuple[Tensor, Tensor]:
        """Returns both operands as views with axes in one order, and size 1 along axes that an operand lacks."""
        a, b = map(self.tensor_of, operation.input_values)
        axis_count, axes = max(len(a.shape), len(b.shape)), operation.output_values[0].axes
        return self._align_axes_of(operation.input_values[0], a, axes, axis_count), self._align_axes_of(
            operation.input_values[1], b, axes, axis_count
        )

    def _align_axes_of(self, recorded_value: Value, x: Tensor, axes: Shape, axis_count: int) -> Tensor:
        """Returns x as a view with all of `axes`, and size 1 along axes that its value does not have."""
        if recorded_value.rows is NO_ROWS and recorded_value.axes:
            for axis in reversed(axes):
                if axis in recorded_value.axes:
                    break
                x = self.aten.unsqueeze(x, -1)
            return x
        if recorded_value.rows is NO_ROWS or len(recorded_value.axes) == len(axes):
            return x
        value_axes, leading_axis_count = list(recorded_value.axes), len(x.shape) - len(recorded_value.axes)
        missing_axes = [
            index for index, axis in enumerate(axes) if not (value_axes and value_axes[0] == axis and value_axes.pop(0))
        ]
        if value_axes:  # axes of other names (a gate per head) come first
            missing_axes = list(range(len(recorded_value.axes), axis_count - leading_axis_count))
        for axis_index in missing_axes:
            x = self.aten.unsqueeze(x, leading_axis_count + axis_index)
        return x

    def do_plus(self, operation: Step) -> None:
        self.store_tensor(operation.output_values[0], self.aten.add_number(self.tensor_of(operation.input_values[0])))

    def do_sum(self, operation: Step) -> None:
        """Computes the sum or mean over one axis."""
        recorded_value, output = operation.input_values[0], operation.output_values[0]
        (summed_axis,) = [axis_index for axis_index, axis in enumerate(recorded_value.axes) if axis not in output.axes]
        reduce_tensor = self.aten.mean if operation.options["mean"] else self.aten.sum
        x = self.tensor_of(recorded_value)
        self.store_tensor(
            output, reduce_tensor(x, len(x.shape) - len(recorded_value.axes) + summed_axis, keepdim=False)
        )

    # --- positions ---------------------------------------------------------------------------------------------------

    def do_added_sinusoids(self, operation: Step) -> None:
        """Computes sinusoids [rows, width] in float32 (SinusoidalPositionsReference.forward)."""
        output = operation.output_values[0]
        self.store_tensor(output, self._compute_sinusoids(self.run_config.new_rows(output.rows), output.width))

    def do_in_format_of(self, operation: Step) -> None:
        x, format_tensor = map(self.tensor_of, operation.input_values)
        self.store_output(operation, self.aten.to(format_tensor, x.dtype))

    def _compute_sinusoids(self, row_count: Number, vector_width: Number) -> Tensor:
        aten, positions = self.aten, self.aten.new_tensor((row_count,), INT64)
        half_width = ceil_div(vector_width, 2)
        exponents = aten.new_like(aten.new_tensor((half_width,), FLOAT32))
        angles = aten.mul(aten.to(aten.unsqueeze(positions, 1), FLOAT32), aten.new_like(aten.new_like(exponents)))
        del exponents
        return aten.slice(
            aten.cat([aten.elementwise_function("sin", angles), aten.elementwise_function("cos", angles)]), vector_width
        )

    # --- activations with parameters ----------------------------------------------------------------------------------

    def do_act(self, operation: Step) -> None:
        if operation.options["kind"] == "xielu":
            self.store_tensor(operation.output_values[0], self.xielu(*map(self.tensor_of, operation.input_values)))
        elif operation.options["kind"] == "log_position":
            x, *activation_weights = map(self.tensor_of, operation.input_values)
            self.store_tensor(
                operation.output_values[0],
                self.aten.transpose(self.scale_by_position(self.aten.transpose(x, 1, 2), *activation_weights), 1, 2),
            )
        else:
            super().do_act(operation)

    def xielu(self, x: Tensor, alpha: Tensor, constants: Tensor) -> Tensor:
        """Computes the xIELU activation, as XIELU.forward does."""
        aten = self.aten
        beta, eps = aten.unbind(constants)
        positive_alpha, negative_alpha = aten.unbind(aten.elementwise_function("softplus", alpha))
        positive_mask = aten.compare(x)
        squared_term = aten.mul(aten.mul(positive_alpha, x), x)
        negative_part = aten.mul(aten.add(beta, negative_alpha), aten.sub(aten.expm1(aten.minimum(x, eps)), x))
        output = aten.where(positive_mask, squared_term, negative_part)
        del positive_mask, squared_term, negative_part
        return aten.add(output, aten.mul(beta, x))

    def scale_by_position(self, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        """Multiplies x [batch, heads, tokens, size] by a scale that depends on the position (PositionScale.forward)."""
        aten = self.aten
        log_positions = aten.to(
            aten.elementwise_function("log", aten.to(aten.add_number(self.token_positions(x.shape[-2])), FLOAT32)),
            x.dtype,
        )
        position_scale = aten.add(aten.mul(aten.unsqueeze(scale, 1), log_positions), aten.unsqueeze(bias, 1))
        return aten.mul(x, aten.unsqueeze(position_scale, -1))
