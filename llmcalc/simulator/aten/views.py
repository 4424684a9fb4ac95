"""torch's creation, views and copies of tensors without values: operations without arithmetic."""

from __future__ import annotations

from collections.abc import Sequence

from ...algebra import Number
from .. import strides as layout
from ..autograd import AutogradGraph, record, record_multiple_outputs
from ..strides import Shape, broadcast_shape, contiguous_strides, is_dense, is_size_one, numel
from ..tensor import AutogradNode, BackwardFunction, Dtype, NeedsInputGrad, OptionalGradient, Tensor, promoted_dtype


class ViewOperations:
    """Creation, views and copies of tensors, recorded in one autograd graph."""

    def __init__(self, autograd_graph: AutogradGraph) -> None:
        self.graph = autograd_graph

    def new_tensor(self, shape: Shape, dtype: Dtype) -> Tensor:
        """Creates a tensor that depends on no other tensor (`zeros`, `arange`)."""
        return self.graph.new_tensor(shape, dtype)

    def new_like(self, *tensors: Tensor, dtype: Dtype | None = None) -> Tensor:
        """Allocates the result of an elementwise operation, with the broadcast shape and the promoted dtype."""
        first_tensor, *other_tensors = tensors
        shape, result_dtype = first_tensor.shape, first_tensor.dtype
        for x in other_tensors:
            if x.shape != shape or x.dtype is not result_dtype:
                shape, result_dtype = broadcast_shape(*[x.shape for x in tensors]), result_type(*tensors)
                break
        strides = layout.elementwise_strides(tuple([(x.shape, x.strides) for x in tensors]), shape)
        return self.graph.new_tensor(shape, result_dtype if dtype is None else dtype, strides)

    def new_gradient(self, shape: Shape) -> BackwardFunction:
        """Returns a backward function that allocates one gradient of a shape."""
        return lambda gradient, _, *__: (self.graph.new_tensor(shape, gradient.dtype),)

    # --- views -------------------------------------------------------------------------------------------------------

    def _view(
        self, x: Tensor, shape: Shape, strides: layout.Strides, operation_name: str, backward: BackwardFunction
    ) -> Tensor:
        view, autograd_graph = x.view(shape, strides), self.graph
        if autograd_graph.is_grad_enabled and (x.node is not None or x.is_leaf):
            view.node = AutogradNode(autograd_graph, operation_name, (x,), backward)
        return view

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """Returns a view with another shape, or a copy if the strides allow no view."""
        if x.shape == shape:
            return x
        strides, input_shape = layout.view_strides(x.shape, x.strides, shape), x.shape
        if strides is not None:
            return self._view(x, shape, strides, "view", lambda g, _: (self.reshape(g, input_shape),))
        copied_view = self._view(
            self.clone(x), shape, contiguous_strides(shape), "view", lambda g, _: (self.reshape(g, input_shape),)
        )
        copied_view.has_base = False  # `_unsafe_view`
        return copied_view

    def with_shape(self, x: Tensor, shape: Shape) -> Tensor:
        """Returns the tensor with the output shape of a kernel, without recording an operation of torch."""
        if x.shape == shape:
            return x
        strides, input_shape = layout.view_strides(x.shape, x.strides, shape), x.shape
        assert strides is not None, (x.shape, x.strides, shape)
        view = self._view(x, shape, strides, "renamed", lambda g, _: (self.with_shape(g, input_shape),))
        view.has_base = x.has_base
        return view

    def flatten(self, x: Tensor, first_axis: int = 0, last_axis: int = -1) -> Tensor:
        """Joins the axes `first_axis` to `last_axis`."""
        last_axis = last_axis % len(x.shape)
        return self.reshape(
            x, (*x.shape[:first_axis], numel(x.shape[first_axis : last_axis + 1]), *x.shape[last_axis + 1 :])
        )

    def unflatten(self, x: Tensor, axis: int, axis_sizes: Shape) -> Tensor:
        """Splits one axis into several axes."""
        axis = axis % len(x.shape)
        return self.reshape(x, (*x.shape[:axis], *axis_sizes, *x.shape[axis + 1 :]))

    def transpose(self, x: Tensor, first_axis: int, second_axis: int) -> Tensor:
        shape, strides = list(x.shape), list(x.strides)
        shape[first_axis], shape[second_axis] = shape[second_axis], shape[first_axis]
        strides[first_axis], strides[second_axis] = strides[second_axis], strides[first_axis]
        return self._view(
            x, tuple(shape), tuple(strides), "transpose", lambda g, _: (self.transpose(g, first_axis, second_axis),)
        )

    def permute(self, x: Tensor, axis_order: Sequence[int]) -> Tensor:
        """Returns a view with the axes in another order."""
        inverse_order = [axis_order.index(axis) for axis in range(len(axis_order))]
        shape, strides = tuple(x.shape[axis] for axis in axis_order), tuple(x.strides[axis] for axis in axis_order)
        return self._view(x, shape, strides, "permute", lambda g, _: (self.permute(g, inverse_order),))

    def unsqueeze(self, x: Tensor, axis: int) -> Tensor:
        axis = axis % (len(x.shape) + 1)
        input_shape = x.shape
        new_stride = x.shape[axis] * x.strides[axis] if axis < len(x.shape) else 1
        shape = (*input_shape[:axis], 1, *input_shape[axis:])
        strides = (*x.strides[:axis], new_stride, *x.strides[axis:])
        return self._view(x, shape, strides, "unsqueeze", lambda g, _: (self.reshape(g, input_shape),))

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        """Repeats axes of one element without allocating memory. The gradient is the sum over the repeated axes."""
        if x.shape == shape:
            return x
        input_shape, new_axis_count = x.shape, len(shape) - len(x.shape)
        strides = (0,) * new_axis_count + tuple(
            0 if is_size_one(axis_size) and not is_size_one(expanded_size) else stride
            for axis_size, expanded_size, stride in zip(x.shape, shape[new_axis_count:], x.strides, strict=True)
        )
        return self._view(x, shape, strides, "expand", lambda g, _: (self.graph.sum_to_shape(input_shape, g),))

    def slice(self, x: Tensor, slice_size: Number, axis: int = -1) -> Tensor:
        """Returns a slice of an axis. Its gradient is padded with zeros."""
        axis = axis % len(x.shape)
        shape = (*x.shape[:axis], slice_size, *x.shape[axis + 1 :])
        return self._view(x, shape, x.strides, "slice", self.new_gradient(x.shape))

    def select(self, x: Tensor, axis: int) -> Tensor:
        """Returns one index of an axis. The gradient is padded with zeros."""
        axis = axis % len(x.shape)
        shape, strides = (*x.shape[:axis], *x.shape[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :])
        return self._view(x, shape, strides, "select", self.new_gradient(x.shape))

    def split(self, x: Tensor, part_sizes: Sequence[Number], axis: int = -1) -> list[Tensor]:
        """Splits an axis into views with a single autograd node, which concatenates the gradients."""
        axis = axis % len(x.shape)
        input_shape, dtype = x.shape, x.dtype
        views = [
            x.view((*input_shape[:axis], part_size, *input_shape[axis + 1 :]), x.strides) for part_size in part_sizes
        ]
        shapes = [view.shape for view in views]

        def join_gradients(gradients: list[OptionalGradient], _: NeedsInputGrad) -> Sequence[OptionalGradient]:
            """Concatenates the gradients of the views."""
            zero_gradients = [
                self.graph.new_tensor(shape, dtype)
                for shape, gradient in zip(shapes, gradients, strict=True)
                if gradient is None
            ]
            joined_gradient = self.graph.new_tensor(input_shape, dtype)
            del zero_gradients
            return (joined_gradient,)

        record_multiple_outputs(
            self.graph, "split", (x,), views, join_gradients if len(views) > 1 else lambda g, _: (g,)
        )
        return views

    def unbind(self, x: Tensor, axis: int = 0) -> list[Tensor]:
        """Splits an axis into views of its indices with a single autograd node, which stacks the gradients."""
        axis, input_shape, dtype = axis % len(x.shape), x.shape, x.dtype
        shape, strides = (*input_shape[:axis], *input_shape[axis + 1 :]), (*x.strides[:axis], *x.strides[axis + 1 :])
        views = [x.view(shape, strides) for _ in range(input_shape[axis])]

        def stack_gradients(gradients: list[OptionalGradient], _: NeedsInputGrad) -> Sequence[OptionalGradient]:
            """Stacks the gradients of the views."""
            zero_gradients = [self.graph.new_tensor((), dtype) for gradient in gradients if gradient is None]
            stacked_gradient = self.graph.new_tensor(input_shape, dtype)
            del zero_gradients
            return (stacked_gradient,)

        record_multiple_outputs(
            self.graph,
            "unbind",
            (x,),
            views,
            stack_gradients if len(views) > 1 else lambda g, _: stack_gradients([g], _),
        )
        return views

    # --- copies ------------------------------------------------------------------------------------------------------

    def clone(self, x: Tensor) -> Tensor:
        """Returns a dense copy of a tensor."""
        return record(self.graph, "clone", (x,), self.graph.new_tensor(x.shape, x.dtype), lambda g, _: (g,))

    def copy(self, x: Tensor) -> Tensor:
        """Copies a tensor in axis order (the default of `clone`)."""
        return record(
            self.graph,
            "clone",
            (x,),
            self.graph.new_tensor(x.shape, x.dtype, self._preserved_strides(x)),
            lambda g, _: (g,),
        )

    def contiguous(self, x: Tensor) -> Tensor:
        """Returns the tensor itself if it is contiguous, otherwise a copy."""
        return x if x.is_contiguous else self.clone(x)

    def to(self, x: Tensor, dtype: Dtype) -> Tensor:
        """Casts a tensor to another number format, or returns the same tensor if it already has this format."""
        if x.dtype is dtype:
            return x
        converted_x = self.graph.new_tensor(x.shape, dtype, self._preserved_strides(x))
        input_dtype = x.dtype
        return record(self.graph, "to", (x,), converted_x, lambda g, _: (self.to(g, input_dtype),))

    def _preserved_strides(self, x: Tensor) -> layout.Strides:
        """Returns the strides of a copy that keeps the order of axes."""
        return (
            x.strides if is_dense(x.shape, x.strides) else layout.elementwise_strides(((x.shape, x.strides),), x.shape)
        )

    def cat(self, tensors: Sequence[Tensor], axis: int = -1) -> Tensor:
        """Concatenates tensors along an axis. The backward pass returns views of one tensor."""
        axis = axis % len(tensors[0].shape)
        total_size: Number = 0
        for x in tensors:
            total_size = total_size + x.shape[axis]
        dtype = tensors[0].dtype
        for x in tensors[1:]:
            dtype = promoted_dtype(dtype, x.dtype)
        shapes = [x.shape for x in tensors]
        output = self.graph.new_tensor((*shapes[0][:axis], total_size, *shapes[0][axis + 1 :]), dtype)
        return record(self.graph, "cat", tensors, output, lambda g, _: [g.view(shape, g.strides) for shape in shapes])

    def stack(self, tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
        """Stacks tensors along a new axis. The backward pass returns views of one tensor."""
        axis, tensor_count = axis % (len(tensors[0].shape) + 1), len(tensors)
        shape = (*tensors[0].shape[:axis], tensor_count, *tensors[0].shape[axis:])
        return record(
            self.graph,
            "stack",
            tensors,
            self.graph.new_tensor(shape, tensors[0].dtype),
            lambda g, _: self.unbind(g, axis),
        )

    def pad(self, x: Tensor, padded_size: Number, axis: int = -1) -> Tensor:
        """Pads the end of an axis with zeros, up to a size."""
        axis = axis % len(x.shape)
        padded_x = self.graph.new_tensor((*x.shape[:axis], padded_size, *x.shape[axis + 1 :]), x.dtype)
        return record(self.graph, "pad", (x,), padded_x, self.new_gradient(x.shape))

    def squeeze(self, x: Tensor) -> Tensor:
        """Returns x without its last axis, of size 1."""
        shape, strides = x.shape, x.strides
        return self._view(x, shape[:-1], strides[:-1], "squeeze", lambda g, _: (g.view(shape, (*g.strides, 1)),))

    def scale_slice_in_place(self, base: Tensor, slice_size: Number, axis: int) -> Tensor:
        """Multiplies a slice of `base` in place by a number, and returns the slice. `base` is unusable afterwards.

        Its gradient is written into zeros of the size of `base` (`AsStridedBackward0`), copied, and scaled in a copy of
        the slice (`CopySlices`).
        """
        shape, strides, dtype = base.shape, base.strides, base.dtype
        slice_shape = (*shape[:axis], slice_size, *shape[axis + 1 :])

        def scale_backward(output_gradient: Tensor, _: NeedsInputGrad) -> Sequence[OptionalGradient]:
            base_gradient = self.graph.new_tensor(shape, dtype, strides)
            slice_gradient = self.graph.new_tensor(slice_shape, dtype)
            scaled_gradient = self.new_like(slice_gradient)
            del slice_gradient, scaled_gradient
            return (base_gradient,)

        scaled_slice = record(
            self.graph, "CopySlices", (base,), Tensor(shape, dtype, base.storage, strides), scale_backward
        )
        return self._view(
            scaled_slice,
            slice_shape,
            strides,
            "as_strided",
            lambda g, _: (self.graph.new_tensor(shape, dtype, strides),),
        )

    def write_into(self, base: Tensor, x: Tensor) -> Tensor:
        """Copies x into a part of `base` in place (`CopySlices`). `base` is unusable afterwards."""
        shape, strides, x_shape = base.shape, base.strides, x.shape

        def backward(output_gradient: Tensor, needs_input_grad: NeedsInputGrad) -> Sequence[OptionalGradient]:
            base_gradient = self.graph.new_tensor(shape, output_gradient.dtype, strides)
            gradient = self.graph.new_tensor(x_shape, output_gradient.dtype)
            slice_gradient = self.new_like(gradient) if needs_input_grad[0] else None
            del slice_gradient
            return (base_gradient if needs_input_grad[0] else None, gradient)

        written_view = Tensor(shape, base.dtype, base.storage, strides)
        return record(self.graph, "CopySlices", (base, x), written_view, backward)

    def repeat_interleave(self, x: Tensor, repeat_count: Number, axis: int) -> Tensor:
        """Repeats every index of an axis."""
        expanded_x = self.unsqueeze(x, axis + 1)
        expanded_x = self.expand(
            expanded_x, (*expanded_x.shape[: axis + 1], repeat_count, *expanded_x.shape[axis + 2 :])
        )
        return self.flatten(self.clone(expanded_x), axis, axis + 1)

    def repeat(self, x: Tensor, repeat_count: Number, axis: int) -> Tensor:
        """Returns an axis repeated several times in sequence, as a copy."""
        axis = axis % len(x.shape)
        repeated_x = self.graph.new_tensor(
            (*x.shape[:axis], repeat_count * x.shape[axis], *x.shape[axis + 1 :]), x.dtype
        )
        backward = (lambda g, _: (g,)) if is_size_one(repeat_count) else self.new_gradient(x.shape)
        return record(self.graph, "repeat", (x,), repeated_x, backward)


def result_type(*tensors: Tensor) -> Dtype:
    """Returns the number format of an elementwise result. Scalars matter only if no tensor is floating-point."""
    non_scalars = [x for x in tensors if x.shape]
    if non_scalars and (
        any(x.dtype.is_floating_point for x in non_scalars) or not any(x.dtype.is_floating_point for x in tensors)
    ):
        tensors = tuple(non_scalars)
    dtype = tensors[0].dtype
    for x in tensors[1:]:
        dtype = promoted_dtype(dtype, x.dtype)
    return dtype
