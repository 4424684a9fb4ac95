"""Tensors without values: shape and strides on a storage, whose bytes a meter counts.

A storage is freed when nothing refers to it any more, as in torch. Python's own reference counts decide this (CPython
frees an object with its last reference), so what a frame names, what a node saves and what a caller passes on keep
memory here as they do there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias

from ..algebra import Number
from .meter import NoMeter
from .strides import Shape, Strides, contiguous_strides, is_contiguous, numel


class Dtype:
    """A number format. promotion_rank: of two operands, the format with the higher rank is the result's."""

    __slots__ = ("bytes", "is_floating_point", "name", "promotion_rank")

    def __init__(self, format_name: str, element_bytes: int, promotion_rank: int, is_floating: bool = False) -> None:
        self.name: str = format_name
        self.bytes: int = element_bytes
        self.promotion_rank: int = promotion_rank
        self.is_floating_point: bool = is_floating

    def __repr__(self) -> str:
        return self.name


BOOL, UINT8, INT32, INT64 = Dtype("bool", 1, 0), Dtype("uint8", 1, 1), Dtype("int32", 4, 2), Dtype("int64", 8, 3)
BFLOAT16, FLOAT16 = Dtype("bfloat16", 2, 4, True), Dtype("float16", 2, 4, True)
FLOAT32, FLOAT64 = Dtype("float32", 4, 5, True), Dtype("float64", 8, 6, True)
FLOAT8 = Dtype("float8", 1, 4, True)
"""The number format of stored 8-bit floats, in which no operation computes."""

DTYPES = {dtype.name: dtype for dtype in (BOOL, UINT8, INT32, INT64, BFLOAT16, FLOAT16, FLOAT32, FLOAT64)}


def promoted_dtype(first_dtype: Dtype, second_dtype: Dtype) -> Dtype:
    """Returns the number format of an elementwise result."""
    if {first_dtype, second_dtype} == {BFLOAT16, FLOAT16}:
        return FLOAT32
    return first_dtype if first_dtype.promotion_rank >= second_dtype.promotion_rank else second_dtype


class Meter(Protocol):
    """The interface of a meter, which counts the bytes of storages.

    kind: kind of memory of new storages. place: place of new storages, as the meter's owner defines it.
    parameter_path: path of the parameter that a loop over parameters has reached; None outside of one.
    stream: on which new storages are allocated, 0 for the default one.
    """

    kind: str
    place: Any
    parameter_path: Any
    stream: int

    def allocate(self, nbytes: Number) -> Any:
        """Returns the block of a new storage."""

    def free(self, block: Any) -> None:
        """Frees the block of a storage."""

    def reclassify(self, block: Any, memory_kind: str) -> None:
        """Counts a storage's bytes as another kind from now on (`activations`, `gradients`)."""


@contextmanager
def count_storages_as(memory_meter: Meter, memory_kind: str) -> Iterator[None]:
    """Counts new storages as a kind of memory, inside a `with`."""
    previous_kind, memory_meter.kind = memory_meter.kind, memory_kind
    try:
        yield
    finally:
        memory_meter.kind = previous_kind


@contextmanager
def allocate_on_stream(memory_meter: Meter, cuda_stream: int) -> Iterator[None]:
    """Allocates new storages on a CUDA stream, inside a `with`."""
    outer_stream, memory_meter.stream = memory_meter.stream, cuda_stream
    try:
        yield
    finally:
        memory_meter.stream = outer_stream


class Storage:
    """The memory that a tensor and its views share."""

    __slots__ = ("__weakref__", "block", "bytes", "meter", "shared")

    def __init__(self, memory_meter: Meter, nbytes: Number) -> None:
        self.meter: Meter = memory_meter
        self.bytes: Number = nbytes
        self.block: Any = memory_meter.allocate(nbytes)

    def __del__(self) -> None:
        self.meter.free(self.block)

    def release(self) -> None:
        """Frees the memory while tensors still refer to the storage (`untyped_storage().resize_(0)`)."""
        self.meter.free(self.block)
        self.meter, self.block = NoMeter(), None

    def share(self, other_storage: Storage) -> None:
        """Lets this storage, after its `release`, use the memory of another storage."""
        self.block, self.shared = other_storage.block, other_storage


class Tensor:
    """A tensor of known shape, strides and type.

    node: the node that made it, None if no gradient flows back from it. output_index: which of the node's outputs it
        is.
    is_leaf: whether the tensor is trained, so that its gradient stays in `grad`.
    has_base: whether it is a view that refers to the tensor it is a view of (`Tensor._base`), which keeps the storage
        beside it, also where gradients are not recorded.
    """

    __slots__ = (
        "__weakref__",
        "dtype",
        "grad",
        "has_base",
        "is_leaf",
        "node",
        "output_index",
        "shape",
        "storage",
        "strides",
    )

    def __init__(
        self, shape: Shape, dtype: Dtype, storage: Storage, strides: Strides | None = None, is_leaf: bool = False
    ) -> None:
        self.shape: Shape = shape
        self.dtype: Dtype = dtype
        self.storage: Storage = storage
        self.strides: Strides = contiguous_strides(shape) if strides is None else strides
        self.is_leaf: bool = is_leaf
        self.output_index: int = 0
        self.has_base: bool = False
        self.node: AutogradNode | None = None
        self.grad: Tensor | None = None

    @property
    def meter(self) -> Meter:
        return self.storage.meter

    @property
    def numel(self) -> Number:
        """The number of elements of the tensor."""
        return numel(self.shape)

    @property
    def bytes(self) -> Number:
        """The bytes of the tensor's elements, which are more than its storage has if the tensor is expanded."""
        return numel(self.shape) * self.dtype.bytes

    @property
    def needs_grad(self) -> bool:
        return self.is_leaf or self.node is not None

    @property
    def is_contiguous(self) -> bool:
        return is_contiguous(self.shape, self.strides)

    def detached(self) -> Tensor:
        """Returns a tensor on the same storage that is not in the autograd graph, as `Tensor.detach`."""
        return Tensor(self.shape, self.dtype, self.storage, self.strides)

    def view(self, shape: Shape, strides: Strides) -> Tensor:
        """Returns a view with another shape and strides that is not in the autograd graph."""
        new_view = Tensor(shape, self.dtype, self.storage, strides)
        new_view.has_base = True
        return new_view

    def __repr__(self) -> str:
        return f"Tensor({list(self.shape)}, {self.dtype})"


def empty(
    memory_meter: Meter, shape: Shape, dtype: Dtype, strides: Strides | None = None, is_leaf: bool = False
) -> Tensor:
    """Returns a new tensor with a new storage."""
    return Tensor(shape, dtype, Storage(memory_meter, math.prod(shape) * dtype.bytes), strides, is_leaf)


OptionalGradient: TypeAlias = Tensor | None
NeedsInputGrad: TypeAlias = Sequence[bool]
BackwardFunction: TypeAlias = Callable[..., Sequence[OptionalGradient]]
"""backward(gradient, needs_input_grad, *saved) → a gradient per input.

gradient: that of the output; of a node with several outputs, a list, with None where no gradient came.
needs_input_grad: for each input, whether its gradient is wanted.
"""


class SavedTensor:
    """A tensor saved by a node for the backward pass."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Tensor) -> None:
        self.tensor: Tensor = tensor

    def unpack(self) -> Tensor:
        return self.tensor


class AutogradState(Protocol):
    """The autograd state that a new node reads (`autograd.AutogradGraph`)."""

    meter: Meter
    node_counter: Iterator[int]
    has_tensor_subclasses: bool
    is_compiled: bool


class AutogradNode:
    """An operation in the autograd graph, with its backward function.

    creation_number: number in the order of creation; the backward pass runs the highest number first.
    place: module and phase of the operation.
    edges: per input, the node and the number of its output that the gradient goes to, or the trained tensor; None where
        no gradient is wanted.
    inputs: per input, the shape and type that its gradient has in the end.
    output_count: the number of its outputs.
    attributes: objects kept in addition to saved tensors, until the graph itself is freed.
    never_adds_in_place: whether gradients of its outputs are never added in place.
    is_compiled: whether it runs in compiled code, where a view may be added to in place.
    """

    __slots__ = (
        "attributes",
        "backward",
        "creation_number",
        "edges",
        "hooks",
        "inputs",
        "is_compiled",
        "name",
        "never_adds_in_place",
        "output_count",
        "place",
        "saved_tensors",
    )  # fmt: skip

    def __init__(
        self,
        autograd_state: AutogradState,
        operation_name: str,
        inputs: Sequence[Tensor],
        backward: BackwardFunction,
        output_count: int = 1,
    ) -> None:
        self.name: str = operation_name
        self.place: Any = autograd_state.meter.place
        self.creation_number: int = next(autograd_state.node_counter)
        self.edges: list[tuple[AutogradNode, int] | Tensor | None] = []
        self.inputs: list[tuple[Shape, Dtype]] = []
        for tensor in inputs:
            self.edges.append(
                (tensor.node, tensor.output_index) if tensor.node is not None else tensor if tensor.is_leaf else None
            )
            self.inputs.append((tensor.shape, tensor.dtype))
        self.backward: BackwardFunction | None = backward
        self.output_count: int = output_count
        self.never_adds_in_place: bool = autograd_state.has_tensor_subclasses
        self.is_compiled = autograd_state.is_compiled and self.place.layer_index >= 0
        self.saved_tensors: list[SavedTensor] = []
        self.attributes: list[object] = []
        self.hooks: list[Callable[[], None]] = []
