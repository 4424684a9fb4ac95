"""torch's elementwise operations and reductions over an axis, on tensors without values."""

from __future__ import annotations

from collections.abc import Sequence

from ..autograd import record
from ..strides import Shape, broadcast_shape
from ..tensor import BOOL, Dtype, NeedsInputGrad, OptionalGradient, Tensor
from .views import ViewOperations, result_type

SAVES_INPUT = frozenset({"silu", "gelu", "softplus", "logsigmoid", "abs", "log", "log1p", "cos", "sin", "asinh"})
"""Names of elementwise functions whose gradient is computed from the input in one kernel."""

SAVES_OUTPUT = frozenset({"relu", "sigmoid", "tanh"})
"""Names of elementwise functions whose gradient is computed from the output in one kernel."""


class ElementwiseOperations(ViewOperations):
    """Elementwise operations, and reductions over an axis."""

    # --- elementwise -------------------------------------------------------------------------------------------------

    def add(self, a: Tensor, b: Tensor) -> Tensor:
        """Adds two tensors."""
        return record(self.graph, "add", (a, b), self.new_like(a, b), lambda g, _: (g, g))

    def sub(self, a: Tensor, b: Tensor) -> Tensor:
        """Subtracts b from a."""

        def backward(output_gradient: Tensor, needs_input_grad: NeedsInputGrad) -> Sequence[OptionalGradient]:
            return output_gradient, self.new_like(output_gradient) if needs_input_grad[1] else None

        return record(self.graph, "sub", (a, b), self.new_like(a, b), backward)

    def add_to(self, a: Tensor, b: Tensor) -> Tensor:
        """Adds b to a in place."""
        a_after_write = Tensor(a.shape, a.dtype, a.storage, a.strides)
        return record(self.graph, "add_", (a, b), a_after_write, lambda g, _: (g, g))

    def add_number(self, x: Tensor) -> Tensor:
        """Adds a number to x."""
        return record(self.graph, "add", (x,), self.new_like(x), lambda g, _: (g,))

    def scale_in_place(self, x: Tensor) -> Tensor:
        """Multiplies or divides x in place by a number."""
        x_after_write = Tensor(x.shape, x.dtype, x.storage, x.strides)
        return record(self.graph, "div_", (x,), x_after_write, lambda g, _: (self.new_like(g),))

    def scale(self, x: Tensor, operation_name: str = "mul") -> Tensor:
        """Multiplies x by a number, or negates x. operation_name: the operation's name in the graph."""
        return record(self.graph, operation_name, (x,), self.new_like(x), lambda g, _: (self.new_like(g),))

    def mul(self, a: Tensor, b: Tensor) -> Tensor:
        """Multiplies two tensors."""
        operands_to_save = saved_factors(a, b)

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *saved_tensors: Tensor
        ) -> Sequence[OptionalGradient]:
            return (
                self.new_like(output_gradient, saved_tensors[0]) if needs_input_grad[0] else None,
                self.new_like(output_gradient, saved_tensors[-1]) if needs_input_grad[1] else None,
            )

        return record(self.graph, "mul", (a, b), lambda: self.new_like(a, b), backward, *operands_to_save)

    def div(self, a: Tensor, b: Tensor) -> Tensor:
        """Divides a by b."""
        operands_to_save = (b, a) if b.needs_grad else (b,)

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, *saved_tensors: Tensor
        ) -> Sequence[OptionalGradient]:
            gradient_b = self._divisor_gradient(output_gradient, *saved_tensors) if needs_input_grad[1] else None
            return self.new_like(output_gradient, saved_tensors[0]) if needs_input_grad[0] else None, gradient_b

        return record(self.graph, "div", (a, b), lambda: self.new_like(a, b), backward, *operands_to_save)

    def _divisor_gradient(self, output_gradient: Tensor, b: Tensor, a: Tensor) -> Tensor:
        """Computes −g · ((a / b) / b), the gradient of the divisor."""
        quotient = self.new_like(a, b)
        quotient_over_b, negated_gradient = self.new_like(quotient, b), self.new_like(output_gradient)
        return self.new_like(negated_gradient, quotient_over_b)

    def square(self, x: Tensor) -> Tensor:
        """Squares each element. Any other constant power allocates the same bytes."""

        def backward(output_gradient: Tensor, _: NeedsInputGrad, x: Tensor) -> Sequence[OptionalGradient]:
            lower_power = self.new_like(x)  # x^(n - 1)
            derivative = self.new_like(lower_power)  # n x^(n - 1)
            return (self.new_like(output_gradient, derivative),)

        return record(self.graph, "pow", (x,), lambda: self.new_like(x), backward, x)

    def rsqrt(self, x: Tensor) -> Tensor:
        output = self.new_like(x)

        def backward(output_gradient: Tensor, _: NeedsInputGrad, output: Tensor) -> Sequence[OptionalGradient]:
            scaled_gradient, power = self.new_like(output_gradient), self.new_like(output)
            return (self.new_like(scaled_gradient, power),)

        return record(self.graph, "rsqrt", (x,), output, backward, output)

    def _with_gradient_from_output(self, operation_name: str, x: Tensor) -> Tensor:
        """Runs a function whose gradient is the output gradient times a factor computed from the saved output."""
        output = self.new_like(x)

        def backward(output_gradient: Tensor, _: NeedsInputGrad, output: Tensor) -> Sequence[OptionalGradient]:
            gradient_factor = self.new_like(output)
            return (self.new_like(output_gradient, gradient_factor),)

        return record(self.graph, operation_name, (x,), output, backward, output)

    def sqrt(self, x: Tensor) -> Tensor:
        return self._with_gradient_from_output("sqrt", x)

    def expm1(self, x: Tensor) -> Tensor:
        return self._with_gradient_from_output("expm1", x)

    def clamp(self, x: Tensor, has_both_limits: bool = False) -> Tensor:
        """Limits x to a minimum, a maximum or both (`clamp_backward`)."""

        def backward(output_gradient: Tensor, _: NeedsInputGrad, x: Tensor) -> Sequence[OptionalGradient]:
            limit_masks = [
                self.compare(x) for _ in range(2 if has_both_limits else 1)
            ]  # the first takes their conjunction in place
            return (self._masked_gradient(output_gradient, limit_masks[0]),)

        return record(self.graph, "clamp", (x,), lambda: self.new_like(x), backward, x)

    def absolute(self, x: Tensor) -> Tensor:
        """Computes |x|. The gradient is multiplied by the sign of x."""

        def backward(output_gradient: Tensor, _: NeedsInputGrad, x: Tensor) -> Sequence[OptionalGradient]:
            sign = self.new_like(x)
            return (self.new_like(output_gradient, sign),)

        return record(self.graph, "abs", (x,), lambda: self.new_like(x), backward, x)

    def sign(self, x: Tensor) -> Tensor:
        """Computes the sign of x. The gradient is zeros."""
        return record(self.graph, "sign", (x,), lambda: self.new_like(x), self.new_gradient(x.shape))

    def minimum(self, a: Tensor, b: Tensor) -> Tensor:
        """Computes the minimum of two tensors elementwise."""

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, a: Tensor, b: Tensor
        ) -> Sequence[OptionalGradient]:
            return tuple(
                self._minimum_gradient(output_gradient, a, b) if needs_grad else None for needs_grad in needs_input_grad
            )

        return record(self.graph, "minimum", (a, b), lambda: self.new_like(a, b), backward, a, b)

    def _minimum_gradient(self, output_gradient: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Returns one operand's gradient of a minimum: half for equal operands, zero for the larger operand."""
        equal_mask, half_gradient = self.compare(a, b), self.new_like(output_gradient)
        gradient = self.new_like(equal_mask, half_gradient, output_gradient, dtype=output_gradient.dtype)
        larger_mask = self.compare(a, b)
        del larger_mask
        return gradient

    def exp(self, x: Tensor) -> Tensor:
        output = self.new_like(x)
        return record(self.graph, "exp", (x,), output, lambda g, _, output: (self.new_like(g, output),), output)

    def elementwise_function(self, operation_name: str, x: Tensor) -> Tensor:
        """Applies an elementwise function with a single gradient kernel."""
        output = self.new_like(x)
        if operation_name in SAVES_OUTPUT:
            return record(
                self.graph, operation_name, (x,), output, lambda g, _, output: (self.new_like(g, output),), output
            )
        assert operation_name in SAVES_INPUT, operation_name
        return record(self.graph, operation_name, (x,), output, lambda g, _, x: (self.new_like(g, x),), x)

    def logaddexp(self, a: Tensor, b: Tensor) -> Tensor:
        """Computes log(eᵃ + eᵇ)."""

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, a: Tensor, b: Tensor
        ) -> Sequence[OptionalGradient]:
            return tuple(
                self._logaddexp_gradient(output_gradient, a, b) if needs_grad else None
                for needs_grad in needs_input_grad
            )

        return record(self.graph, "logaddexp", (a, b), self.new_like(a, b), backward, a, b)

    def _logaddexp_gradient(self, output_gradient: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Computes g / (1 + exp(a − b)), the gradient of either operand."""
        difference = self.new_like(a, b)
        exponential = self.new_like(difference)
        denominator = self.new_like(exponential)
        return self.new_like(output_gradient, denominator)

    def masked_fill(self, x: Tensor, mask: Tensor) -> Tensor:
        """Copies x with a constant at masked elements."""
        shape, dtype = broadcast_shape(x.shape, mask.shape), x.dtype
        return record(
            self.graph, "masked_fill", (x,), lambda: self.graph.new_tensor(shape, dtype), self.new_gradient(shape), mask
        )

    def compare(self, *tensors: Tensor) -> Tensor:
        """Compares tensors elementwise, or combines them logically, without a gradient."""
        return self.new_like(*tensors, dtype=BOOL)

    def where(self, condition: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Selects elements of a where the condition is true, otherwise of b."""

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, condition: Tensor
        ) -> Sequence[OptionalGradient]:
            return tuple(
                self._masked_gradient(output_gradient, condition) if needs_grad else None
                for needs_grad in needs_input_grad
            )

        return record(
            self.graph,
            "where",
            (a, b),
            lambda: self.new_like(condition, a, b, dtype=result_type(a, b)),
            backward,
            condition,
        )

    def _masked_gradient(self, output_gradient: Tensor, condition: Tensor) -> Tensor:
        """Returns the gradient where the condition is true, and zeros from a separate tensor elsewhere."""
        zero_scalar = self.graph.new_tensor((), output_gradient.dtype)
        return self.new_like(output_gradient, condition, zero_scalar, dtype=output_gradient.dtype)

    def dropout(self, x: Tensor) -> Tensor:
        """Runs training dropout in one kernel, which first allocates a saved mask of one byte per element."""
        mask, output = self.new_like(x, dtype=BOOL), self.new_like(x)
        return record(self.graph, "dropout", (x,), output, lambda g, _, mask: (self.new_like(g),), mask)

    # --- reductions --------------------------------------------------------------------------------------------------

    def _reduced_shape(self, x: Tensor, axis: int, keepdim: bool) -> Shape:
        axis = axis % len(x.shape)
        return (*x.shape[:axis], *((1,) if keepdim else ()), *x.shape[axis + 1 :])

    def mean(self, x: Tensor, axis: int = -1, keepdim: bool = True) -> Tensor:
        output = self.graph.new_tensor(self._reduced_shape(x, axis, keepdim), x.dtype)
        return record(self.graph, "mean", (x,), output, self.new_gradient(x.shape))

    def sum(self, x: Tensor, axis: int = -1, keepdim: bool = False) -> Tensor:
        output, input_shape = self.graph.new_tensor(self._reduced_shape(x, axis, keepdim), x.dtype), x.shape
        axis = axis % len(input_shape)

        def backward(output_gradient: Tensor, _: NeedsInputGrad) -> Sequence[OptionalGradient]:
            return (self.expand(output_gradient if keepdim else self.unsqueeze(output_gradient, axis), input_shape),)

        return record(self.graph, "sum", (x,), output, backward)

    def softmax(self, x: Tensor, dtype: Dtype | None = None) -> Tensor:
        """Computes the softmax over the last axis.

        On a GPU the backward pass multiplies its gradient by its result first (aten/src/ATen/native/cuda/SoftMax.cu,
        `softmax_backward_cuda_out`).
        """
        autograd_graph = self.graph
        output = autograd_graph.new_tensor(x.shape, x.dtype if dtype is None else dtype)

        def backward(output_gradient: Tensor, _: NeedsInputGrad, output: Tensor) -> Sequence[OptionalGradient]:
            gradient = autograd_graph.new_tensor(output.shape, output.dtype)
            gradient_product = (
                autograd_graph.new_tensor(output.shape, output.dtype) if autograd_graph.multiprocessors else None
            )
            del gradient_product
            return (gradient,)

        return record(autograd_graph, "softmax", (x,), output, backward, output)

    def logsumexp(self, x: Tensor) -> Tensor:
        """Computes log Σ exp x over the last axis. The exponentials are a temporary tensor on a GPU (ReduceOps.cpp)."""
        shape, dtype = x.shape, x.dtype
        exponentials = self.graph.new_tensor(shape, dtype) if self.graph.multiprocessors else None
        output = self.graph.new_tensor(shape[:-1], dtype)
        del exponentials

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *__: Tensor) -> Sequence[OptionalGradient]:
            shifted_x = self.graph.new_tensor(shape, dtype)
            probabilities = self.graph.new_tensor(shape, dtype)
            gradient = self.graph.new_tensor(shape, dtype)
            del shifted_x, probabilities
            return (gradient,)

        return record(self.graph, "logsumexp", (x,), output, backward, x, output)

    def log_softmax(self, x: Tensor) -> Tensor:
        output = self.graph.new_tensor(x.shape, x.dtype)
        return record(self.graph, "log_softmax", (x,), output, self._gradient_like_saved, output)

    def nll_loss(self, log_probs: Tensor, labels: Tensor) -> Tensor:
        """Computes the mean negative log-likelihood of the labels."""
        output, weight = self.graph.new_tensor((), log_probs.dtype), self.graph.new_tensor((), log_probs.dtype)
        return record(
            self.graph, "nll_loss", (log_probs,), output, self._gradient_like_saved, log_probs, labels, weight
        )

    def _gradient_like_saved(
        self, gradient: Tensor, _: NeedsInputGrad, saved_tensor: Tensor, *__: Tensor
    ) -> Sequence[OptionalGradient]:
        """Allocates a contiguous gradient with the shape and the number format of the first saved tensor."""
        return (self.graph.new_tensor(saved_tensor.shape, saved_tensor.dtype),)


def saved_factors(a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    """Returns the factors that a product saves for the gradients of the other factors."""
    return (*((b,) if a.needs_grad else ()), *((a,) if b.needs_grad else ()))
