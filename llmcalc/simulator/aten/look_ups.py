"""torch's operations with indices, on tensors without values: gathering elements and rows, top-k, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from ...algebra import Number
from ..autograd import record
from ..strides import Shape
from ..tensor import FLOAT32, INT64, BackwardFunction, NeedsInputGrad, OptionalGradient, Tensor
from .products import ProductOperations


class LookUpOperations(ProductOperations):
    """Operations that read or write elements by index."""

    def embedding(self, weight: Tensor, index: Tensor) -> Tensor:
        shape, dtype = (*index.shape, weight.shape[1]), weight.dtype
        backward = self.new_gradient(weight.shape)
        return record(self.graph, "embedding", (weight,), lambda: self.graph.new_tensor(shape, dtype), backward, index)

    def gather(self, x: Tensor, index: Tensor) -> Tensor:
        """Gathers elements of the last axis by index."""
        shape, dtype = index.shape, x.dtype
        backward = self._gather_backward(x.shape)
        return record(self.graph, "gather", (x,), lambda: self.graph.new_tensor(shape, dtype), backward, index, x)

    def scatter(self, x: Tensor, index: Tensor, new_values: Tensor | None = None) -> Tensor:
        """Replaces elements along x's last axis by elements of `new_values`, or by a constant."""
        shapes = x.shape, index.shape

        def backward(
            output_gradient: Tensor, needs_input_grad: NeedsInputGrad, _: Tensor
        ) -> Sequence[OptionalGradient]:
            return [
                self.graph.new_tensor(shape, output_gradient.dtype) if needs_grad else None
                for shape, needs_grad in zip(shapes, needs_input_grad, strict=False)
            ]

        inputs = (x,) if new_values is None else (x, new_values)
        return record(self.graph, "scatter", inputs, lambda: self.graph.new_tensor(x.shape, x.dtype), backward, index)

    def index_select(self, x: Tensor, index: Tensor) -> Tensor:
        """Selects rows of x by an index tensor with any number of axes."""
        shape, dtype = (*index.shape, *x.shape[1:]), x.dtype
        backward = self._gather_backward(x.shape)
        return record(self.graph, "index_select", (x,), lambda: self.graph.new_tensor(shape, dtype), backward, index)

    def _gather_backward(self, shape: Shape) -> BackwardFunction:
        """Returns the backward function of a gather, whose gradient is zeros with added elements.

        A TorchDispatchMode adds them out of place.
        """

        def backward(output_gradient: Tensor, _: NeedsInputGrad, *__: Tensor) -> Sequence[OptionalGradient]:
            zero_gradient = self.graph.new_tensor(shape, output_gradient.dtype)
            return (zero_gradient if self.graph.adds_in_place else self.new_like(zero_gradient),)

        return backward

    def topk(self, x: Tensor, k: Number, axis: int = -1) -> tuple[Tensor, Tensor]:
        """Returns the k highest values along an axis, and the indices of these values."""
        axis = axis % len(x.shape)
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        highest_values, indices = self.graph.new_tensor(shape, x.dtype), self.graph.new_tensor(shape, INT64)
        return record(self.graph, "topk", (x,), highest_values, self._gather_backward(x.shape), indices), indices

    def histogram(self, x: Tensor, bins: Number) -> Tensor:
        """Counts the occurrences of each integer from 0 to bins − 1, in float32."""
        float_values = self.to(x, FLOAT32)
        return self.graph.new_tensor((bins,), float_values.dtype)

    def sort(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Sorts integers, and returns the sorted integers and the original indices."""
        return self.new_like(x), self.graph.new_tensor(x.shape, INT64)

    def index_add(self, row_count: Number, new_values: Tensor, index: Tensor) -> Tensor:
        """Adds the rows of `new_values` at given indices to `row_count` zero rows."""
        zero_rows = self.graph.new_tensor((row_count, *new_values.shape[1:]), new_values.dtype)
        backward = self.new_gradient(new_values.shape)
        return record(
            self.graph, "index_add", (new_values,), lambda: self.new_like(zero_rows), backward, index, new_values
        )
