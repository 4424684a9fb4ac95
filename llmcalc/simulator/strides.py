"""Shapes and strides by PyTorch's rules. Sizes are integers, or symbols in formulas.

Strides decide where a reshape copies, so they decide memory. Sources: `at::detail::computeStride` in
aten/src/ATen/TensorUtils.cpp, and `TensorIteratorBase::reorder_dimensions` in aten/src/ATen/TensorIterator.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeAlias

from ..algebra import Number

Shape: TypeAlias = tuple[Number, ...]
Strides: TypeAlias = tuple[Number, ...]

CACHED_STRIDES = 4096
"""Largest number of shapes whose strides are cached per function, because equal layers ask for equal shapes."""


def numel(shape: Shape) -> Number:
    """Returns the number of elements of a shape."""
    return math.prod(shape)


def is_size_one(axis_size: Number) -> bool:
    """Whether a size is known to be 1."""
    return isinstance(axis_size, int) and axis_size == 1


def is_size_zero(axis_size: Number) -> bool:
    """Whether a size is known to be 0."""
    return isinstance(axis_size, int) and axis_size == 0


@lru_cache(CACHED_STRIDES)
def contiguous_strides(shape: Shape) -> Strides:
    """Returns the strides of a contiguous tensor."""
    strides: list[Number] = []
    dense_stride: Number = 1
    for axis_size in reversed(shape):
        strides.append(dense_stride)
        if not is_size_one(axis_size) and not is_size_zero(axis_size):
            dense_stride = axis_size if type(dense_stride) is int and dense_stride == 1 else dense_stride * axis_size
    return tuple(reversed(strides))


@lru_cache(CACHED_STRIDES)
def is_contiguous(shape: Shape, strides: Strides) -> bool:
    """Whether strides are contiguous, ignoring axes with one element."""
    if any(map(is_size_zero, shape)):
        return True
    dense_strides = contiguous_strides(shape)
    return all(
        is_size_one(axis_size) or stride == dense_stride
        for axis_size, stride, dense_stride in zip(shape, strides, dense_strides, strict=True)
    )


@lru_cache(CACHED_STRIDES)
def is_dense(shape: Shape, strides: Strides) -> bool:
    """Whether a tensor fills its storage without gaps or overlaps, in any order of axes."""
    strides_and_sizes = [(stride, size) for size, stride in zip(shape, strides, strict=True) if not is_size_one(size)]
    if not all(
        isinstance(stride_or_size, int) for stride_and_size in strides_and_sizes for stride_or_size in stride_and_size
    ):
        return {stride for stride, _ in strides_and_sizes} == set(contiguous_strides(shape)) or is_contiguous(
            shape, strides
        )
    dense_stride: Number = 1
    for stride, axis_size in sorted(strides_and_sizes):
        if stride != dense_stride:
            return False
        dense_stride *= axis_size
    return True


@lru_cache(CACHED_STRIDES)
def view_strides(shape: Shape, strides: Strides, new_shape: Shape) -> Strides | None:
    """Returns the strides of a view with another shape; None if the shape needs a copy."""
    element_count = numel(shape)
    assert not isinstance(element_count, int) or element_count == numel(new_shape), (shape, new_shape)
    if any(map(is_size_zero, shape)):
        return contiguous_strides(new_shape)
    new_strides: list[Number] = []
    remaining_sizes = list(new_shape)
    last_axis = len(shape) - 1
    stride_of_group, old_group_size = (strides[-1] if strides else 1), SizeProduct()
    for axis in range(last_axis, -1, -1):
        old_group_size.grow(shape[axis])
        is_group_end = axis == 0 or (
            not is_size_one(shape[axis - 1]) and strides[axis - 1] != old_group_size.times(stride_of_group)
        )
        if not is_group_end:
            continue
        new_group_size = SizeProduct()
        while remaining_sizes and (not new_group_size.reaches(old_group_size) or is_size_one(remaining_sizes[-1])):
            new_strides.append(new_group_size.times(stride_of_group))
            new_group_size.grow(remaining_sizes.pop())
        if not new_group_size.reaches(old_group_size):
            return None
        if axis > 0:
            stride_of_group, old_group_size = strides[axis - 1], SizeProduct()
    return None if remaining_sizes else tuple(reversed(new_strides))


class SizeProduct:
    """A product of tensor sizes that can be compared with another: by value, or by equality of symbols."""

    __slots__ = ("integer_factor",)

    def __init__(self) -> None:
        self.integer_factor: Number = 1

    def grow(self, factor: Number) -> None:
        self.integer_factor = factor if is_size_one(self.integer_factor) else self.integer_factor * factor

    def times(self, stride: Number) -> Number:
        return self.integer_factor if is_size_one(stride) else self.integer_factor * stride

    def reaches(self, other_size: SizeProduct) -> bool:
        if isinstance(self.integer_factor, int) and isinstance(other_size.integer_factor, int):
            return self.integer_factor >= other_size.integer_factor
        return bool(self.integer_factor == other_size.integer_factor)


def broadcast_shape(*shapes: Shape) -> Shape:
    """Returns the common shape to which shapes are broadcast in an elementwise operation."""
    result_shape, *other_shapes = shapes
    for shape in other_shapes:
        if shape != result_shape:
            rank_difference = len(result_shape) - len(shape)
            axis_size_pairs = zip(
                result_shape if rank_difference >= 0 else (1,) * -rank_difference + result_shape,
                (1,) * rank_difference + shape,
                strict=True,
            )
            result_shape = tuple(
                [_broadcast_size(first_size, second_size) for first_size, second_size in axis_size_pairs]
            )
    return result_shape


def _broadcast_size(first_axis_size: Number, second_axis_size: Number) -> Number:
    """Returns the broadcast size of two sizes, which must be equal unless one size is 1."""
    if type(second_axis_size) is int and second_axis_size == 1:
        return first_axis_size
    assert (
        is_size_one(first_axis_size)
        or not isinstance(first_axis_size, int)
        or not isinstance(second_axis_size, int)
        or first_axis_size == second_axis_size
    )
    return second_axis_size


@lru_cache(CACHED_STRIDES)
def elementwise_strides(operands: tuple[tuple[Shape, Strides], ...], shape: Shape) -> Strides:
    """Returns the strides of an elementwise result: the operands' if they are equal, otherwise dense ones in the same
    axis order.
    """
    if all(operand_shape == shape for operand_shape, _ in operands):
        if all(is_contiguous(operand_shape, strides) for operand_shape, strides in operands):
            return contiguous_strides(shape)
        strides_of_first = operands[0][1]
        if all(strides == strides_of_first for _, strides in operands) and is_dense(shape, strides_of_first):
            return strides_of_first
    if not all(
        isinstance(size_or_stride, int)
        for operand_shape, strides in operands
        for size_or_stride in (*operand_shape, *strides)
    ):
        dense_operand_strides = [
            strides
            for operand_shape, strides in operands
            if operand_shape == shape and is_dense(operand_shape, strides)
        ]
        return dense_operand_strides[0] if dense_operand_strides else contiguous_strides(shape)
    axis_count = len(shape)
    broadcast_strides = [
        (0,) * (axis_count - len(operand_shape))
        + tuple(
            0 if axis_size == 1 and result_size != 1 else stride
            for axis_size, stride, result_size in zip(
                operand_shape, strides, shape[axis_count - len(operand_shape) :], strict=True
            )
        )
        for operand_shape, strides in operands
    ]
    axis_order = _axis_order(broadcast_strides, shape)
    result_strides: list[Number] = [0] * axis_count
    dense_stride = 1
    for axis in axis_order:
        result_strides[axis] = dense_stride
        dense_stride *= shape[axis]
    return tuple(result_strides)


def _axis_order(operand_strides: Sequence[Strides], shape: Shape) -> list[int]:
    """Returns the axes of an elementwise result in the order of their strides, the smallest stride first."""
    axis_order = list(range(len(shape) - 1, -1, -1))

    def compare_axes(inner_axis: int, outer_axis: int) -> int:
        for strides in operand_strides:
            if strides[inner_axis] == 0 or strides[outer_axis] == 0:
                continue
            if strides[inner_axis] != strides[outer_axis]:
                return -1 if strides[inner_axis] < strides[outer_axis] else 1
            if shape[inner_axis] > shape[outer_axis]:
                return 1
        return 0

    for sorted_count in range(1, len(axis_order)):
        sorted_position = sorted_count
        for previous_position in range(sorted_count - 1, -1, -1):
            axis_comparison = compare_axes(axis_order[previous_position], axis_order[sorted_position])
            if axis_comparison > 0:
                axis_order[previous_position], axis_order[sorted_position] = (
                    axis_order[sorted_position],
                    axis_order[previous_position],
                )
                sorted_position = previous_position
            elif axis_comparison < 0:
                break
    return axis_order


def clear_caches() -> None:
    """Clears the cached strides of symbolic sizes, which other runs cannot use."""
    for cached_function in (contiguous_strides, is_contiguous, is_dense, view_strides, elementwise_strides):
        cached_function.cache_clear()
