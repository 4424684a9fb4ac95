"""Operations with indices: gathering elements and rows, top-k, sorting."""

from __future__ import annotations

from collections.abc import Sequence

from ...algebra import Number
from ..autograd import record
from ..strides import Shape
from ..tensor import FLOAT32, INT64, Dtype, Gradient, Needs, Tensor
from .products import Products


class LookUps(Products):
    """Operations that read or write elements by index."""

    def embedding(self, weight: Tensor, index: Tensor) -> Tensor:
        shape = weight.shape
        return record(
            self.graph,
            "embedding",
            (weight,),
            lambda: self.graph.new((*index.shape, shape[1]), weight.dtype),
            lambda g, _, index: (self.graph.new(shape, g.dtype),),
            index,
        )

    def gather(self, x: Tensor, index: Tensor) -> Tensor:
        """Gathers elements of the last axis by index."""
        shape = x.shape
        return record(
            self.graph,
            "gather",
            (x,),
            lambda: self.graph.new(index.shape, x.dtype),
            lambda g, _, *__: (self._new_gather_gradient(shape, g.dtype),),
            index,
            x,
        )

    def scatter(self, x: Tensor, index: Tensor, source: Tensor | None = None) -> Tensor:
        """Replaces elements of x's last axis by index with those of `source`, or with a constant."""
        shapes = x.shape, index.shape

        def backward(output_gradient: Tensor, needs_input_grad: Needs, _: Tensor) -> Sequence[Gradient]:
            return [
                self.graph.new(shape, output_gradient.dtype) if needs_grad else None
                for shape, needs_grad in zip(shapes, needs_input_grad, strict=False)
            ]

        inputs = (x,) if source is None else (x, source)
        return record(self.graph, "scatter", inputs, lambda: self.graph.new(x.shape, x.dtype), backward, index)

    def index_select(self, x: Tensor, index: Tensor) -> Tensor:
        """Selects rows of x by an index tensor with any number of axes."""
        shape = x.shape
        return record(
            self.graph,
            "index_select",
            (x,),
            lambda: self.graph.new((*index.shape, *shape[1:]), x.dtype),
            lambda g, _, index: (self._new_gather_gradient(shape, g.dtype),),
            index,
        )

    def _new_gather_gradient(self, shape: Shape, dtype: Dtype) -> Tensor:
        """Allocates the gradient of a gather: zeros with added elements. A TorchDispatchMode makes it out of place."""
        zeros = self.graph.new(shape, dtype)
        return zeros if self.graph.adds_in_place else self.like(zeros)

    def topk(self, x: Tensor, k: Number, axis: int = -1) -> tuple[Tensor, Tensor]:
        """Returns the k highest values along an axis, and their indices."""
        axis = axis % len(x.shape)
        shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
        values, indices, input_shape = self.graph.new(shape, x.dtype), self.graph.new(shape, INT64), x.shape
        recorded_values = record(
            self.graph,
            "topk",
            (x,),
            values,
            lambda g, _, indices: (self._new_gather_gradient(input_shape, g.dtype),),
            indices,
        )
        return recorded_values, indices

    def histogram(self, x: Tensor, bins: Number) -> Tensor:
        """Counts how often each integer from 0 to bins − 1 occurs, in float32."""
        float_values = self.to(x, FLOAT32)
        return self.graph.new((bins,), float_values.dtype)

    def sort(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Sorts integers. Returns the sorted integers and their original indices."""
        return self.like(x), self.graph.new(x.shape, INT64)

    def index_add(self, rows: Number, source: Tensor, index: Tensor) -> Tensor:
        """Adds the rows of `source` at their indices to `rows` rows of zeros."""
        zeros = self.graph.new((rows, *source.shape[1:]), source.dtype)
        shape = source.shape
        return record(
            self.graph,
            "index_add",
            (source,),
            lambda: self.like(zeros),
            lambda g, _, index, source: (self.graph.new(shape, g.dtype),),
            index,
            source,
        )
