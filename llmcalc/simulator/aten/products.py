"""torch's matrix products, linear layers and convolutions, with the copies that autocast makes of inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ...algebra import Number, are_equal
from ..autograd import record
from ..strides import Shape, Strides, broadcast_shape, is_size_one, numel
from ..tensor import FLOAT32, NeedsInputGrad, OptionalGradient, Tensor
from .elementwise import ElementwiseOperations, saved_factors

TensorLayout: TypeAlias = tuple[Shape, Strides | None]
"""Shape and strides of a tensor; strides are None if contiguous."""


class ProductOperations(ElementwiseOperations):
    """Matrix products, linear layers and convolutions."""

    def mm(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies matrices: [n, k] × [k, m]."""
        return self._product("mm", a, b, (a.shape[0], b.shape[1]), (_gradient_layout(a), _gradient_layout(b)))

    def addmm(self, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Adds a bias to a matrix product: bias + [n, k] × [k, m]."""
        shape, gradient_layouts = (a.shape[0], b.shape[1]), (_gradient_layout(a), _gradient_layout(b))
        return self._biased_product("addmm", bias, a, b, shape, gradient_layouts)

    def bmm(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies batched matrices: [n, r, k] × [n, k, c]."""
        shape, gradient_layouts = (a.shape[0], a.shape[1], b.shape[2]), ((a.shape, None), (b.shape, None))
        return self._product("bmm", a, b, shape, gradient_layouts)

    def baddbmm(self, bias: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Adds a bias to a batched matrix product: bias + [n, r, k] × [n, k, c]."""
        shape, gradient_layouts = (a.shape[0], a.shape[1], b.shape[2]), ((a.shape, None), (b.shape, None))
        return self._biased_product("baddbmm", bias, a, b, shape, gradient_layouts)

    def _product(
        self, operation_name: str, a: Tensor, b: Tensor, shape: Shape, gradient_layouts: Sequence[TensorLayout]
    ) -> Tensor:
        """Multiplies a and b. shape: the product's shape. gradient_layouts: layouts of the gradients of a and b."""
        operands_to_save, dtype = saved_factors(a, b), a.dtype

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *_: Tensor
        ) -> Sequence[OptionalGradient]:
            gradients = self._empty_gradients(output_gradient, reversed(gradient_layouts), reversed(needs_input_grad))
            return gradients[::-1]

        def make_product() -> Tensor:
            return self.graph.operation_result(operation_name, shape, dtype)

        return record(self.graph, operation_name, (a, b), make_product, backward, *operands_to_save)

    def _biased_product(
        self,
        operation_name: str,
        bias: Tensor,
        a: Tensor,
        b: Tensor,
        shape: Shape,
        gradient_layouts: Sequence[TensorLayout],
    ) -> Tensor:
        """Adds a bias to the product of a and b. shape, gradient_layouts: as in `_product`."""
        operands_to_save, dtype = saved_factors(a, b), a.dtype

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *_: Tensor
        ) -> Sequence[OptionalGradient]:
            gradients = self._empty_gradients(output_gradient, gradient_layouts, needs_input_grad[1:])
            return output_gradient if needs_input_grad[0] else None, *gradients

        def make_product() -> Tensor:
            return self.graph.operation_result(operation_name, shape, dtype)

        return record(self.graph, operation_name, (bias, a, b), make_product, backward, *operands_to_save)

    def _empty_gradients(
        self, gradient: Tensor, gradient_layouts: Iterable[TensorLayout], needs_input_grad: Iterable[bool]
    ) -> list[OptionalGradient]:
        """Allocates the needed gradients in the incoming gradient's number format; None where no gradient is needed."""
        return [
            self.graph.new_tensor(shape, gradient.dtype, strides) if needs_gradient else None
            for (shape, strides), needs_gradient in zip(gradient_layouts, needs_input_grad, strict=True)
        ]

    def autocast_operand(self, x: Tensor) -> Tensor:
        """Casts an operand to the autocast format, with a cache for weights.

        A product's arguments are copied from the last to the first, and live beside the copies until it ran. Source:
        aten/src/ATen/autocast_mode.cpp, `cached_cast`.
        """
        autocast_dtype = self.graph.autocast_dtype
        if autocast_dtype is None or x.dtype is not FLOAT32:
            return x
        if not x.is_leaf:
            return self.to(x, autocast_dtype)
        if id(x) not in self.graph.cast_copies:
            self.graph.cast_copies[id(x)] = x, self.to(x, autocast_dtype)
        return self.graph.cast_copies[id(x)][1]

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies matrices [n, k] × [k, m] in the autocast format."""
        cast_b = self.autocast_operand(b)
        return self.mm(self.autocast_operand(a), cast_b)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Computes x·Wᵀ + b. weight: [out, in]."""
        if self.graph.autocast_dtype is None:
            return self._linear(x, weight, bias)
        cast_bias = None if bias is None else self.autocast_operand(bias)
        cast_weight = self.autocast_operand(weight)
        return self._linear(self.autocast_operand(x), cast_weight, cast_bias)

    def _linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Computes x·Wᵀ + b without autocast."""
        leading_axes, transposed_weight = x.shape[:-1], self.transpose(weight, 0, 1)
        if bias is not None and len(x.shape) in (2, 3) and (len(x.shape) == 2 or x.is_contiguous):
            flat_rows = self.reshape(x, (numel(leading_axes), x.shape[-1]))
            return self.reshape(self.addmm(bias, flat_rows, transposed_weight), (*leading_axes, weight.shape[0]))
        if self._runs_as_one_product(x, weight):
            output = self.reshape(
                self.mm(self.reshape(x, (numel(leading_axes), x.shape[-1])), transposed_weight),
                (*leading_axes, weight.shape[0]),
            )
        else:
            output = self._matmul(x, transposed_weight)
        return output if bias is None else self.add(output, bias)

    def _runs_as_one_product(self, x: Tensor, weight: Tensor) -> bool:
        """Whether a batched linear layer is one matrix product: its weight is trained, or x flattens without a copy.

        Source: aten/src/ATen/native/LinearAlgebra.cpp, `should_fold`.
        """
        if weight.needs_grad or not self.graph.is_grad_enabled:
            return True
        leading_axes = range(len(x.shape) - 2)
        return all(are_equal(x.strides[axis], x.strides[axis + 1] * x.shape[axis + 1]) for axis in leading_axes)

    def grouped_mm(self, a: Tensor, b: Tensor, group_ends: Tensor, *joined_matrices: Tensor) -> Tensor:
        """Multiplies each group of rows by a matrix per group: [rows, k] × [groups, k, m].

        group_ends: last row per group. joined_matrices: further matrices, [groups, k, ·], beside the columns of b
        in one product.
        """
        matrices = (b, *joined_matrices)
        saved_rows = [a] if any(matrix.needs_grad for matrix in matrices) else []
        tensors_to_save = (*saved_rows, *(matrices if a.needs_grad else ()), group_ends)
        row_shape, column_count = a.shape, sum(matrix.shape[2] for matrix in matrices)
        gradient_layouts = []
        for matrix in matrices:
            _, n_in, n_out = matrix.shape
            is_column_major = is_size_one(matrix.strides[1]) and not is_size_one(matrix.strides[2])
            gradient_layouts.append((matrix.shape, (n_in * n_out, 1, n_in) if is_column_major else None))

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *_: Tensor
        ) -> Sequence[OptionalGradient]:
            gradients = self._empty_gradients(output_gradient, gradient_layouts, needs_input_grad[1:])
            return self.graph.new_tensor(row_shape, output_gradient.dtype) if needs_input_grad[0] else None, *gradients

        return record(
            self.graph,
            "grouped_mm",
            (a, *matrices),
            lambda: self.graph.operation_result("grouped_mm", (row_shape[0], column_count), a.dtype),
            backward,
            *tensors_to_save,
        )

    def matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies matrices in the last two axes. Leading axes are broadcast."""
        cast_b = self.autocast_operand(b)
        return self._matmul(self.autocast_operand(a), cast_b)

    def _matmul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies batched matrices."""
        batch_shape = broadcast_shape(a.shape[:-2], b.shape[:-2])
        matrix_count = numel(batch_shape)
        matrices_a = self.reshape(self.expand(a, (*batch_shape, *a.shape[-2:])), (matrix_count, *a.shape[-2:]))
        matrices_b = self.reshape(self.expand(b, (*batch_shape, *b.shape[-2:])), (matrix_count, *b.shape[-2:]))
        return self.reshape(self.bmm(matrices_a, matrices_b), (*batch_shape, a.shape[-2], b.shape[-1]))

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, length: Number) -> Tensor:
        """Convolves along the rows: [batch, channels, rows, …] → [batch, out, length, …]."""
        cast_bias = None if bias is None else self.autocast_operand(bias)
        cast_weight = self.autocast_operand(weight)
        return self._convolution(self.autocast_operand(x), cast_weight, cast_bias, length)

    def _convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None, length: Number) -> Tensor:
        shape = (x.shape[0], weight.shape[0], length, *x.shape[3:])
        inputs = (x, weight) if bias is None else (x, weight, bias)
        gradient_layouts: list[TensorLayout] = [(tensor.shape, None) for tensor in inputs]

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *_: Tensor
        ) -> Sequence[OptionalGradient]:
            return self._empty_gradients(output_gradient, gradient_layouts, needs_input_grad)

        def make_output() -> Tensor:
            return self.graph.operation_result("convolution", shape, x.dtype)

        return record(self.graph, "convolution", inputs, make_output, backward, x, weight)


def _gradient_layout(x: Tensor) -> TensorLayout:
    """Returns shape and strides of the gradient of x, in the order of x's axes (`mm_mat1_backward`)."""
    is_column_major = is_size_one(x.strides[0]) and are_equal(x.strides[1], x.shape[0])
    return x.shape, (1, x.shape[0]) if is_column_major else None
