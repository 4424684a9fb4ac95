"""Caches the shapes of meta tensors, which torch computes slowly.

torch computes many of them in Python, in 0.2 to 1.4 ms each, which is most of the time of a pass over a small model.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, ClassVar, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

MAX_CACHED_RESULTS = 20_000
"""Largest number of cached results."""


class ShapeCache(TorchDispatchMode):
    """A dispatch mode that caches the shapes of operations' results, for all passes of this process.

    counter: a FLOP counter that was entered before and counts the operations that have formulas; default None.
    """

    cached_results: ClassVar[dict[Hashable, Any]] = {}

    def __init__(self, flop_counter: FlopCounterMode | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own __init__ has no types
        self.counter = flop_counter
        self._packets_with_formula = frozenset(map(id, flop_counter.flop_registry)) if flop_counter else frozenset()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns false, so that torch leaves out two wrappers per call that only torch.compile needs."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operation = _OPERATION_BY_ID.get(id(function)) or _describe_operation(function)
        if operation.is_composed:
            return function(*args, **kwargs)  # counted by the counter, because its parts may have FLOPs
        with torch._C._DisableTorchDispatch():  # bypasses the counter
            empty_results = self._empty_result(operation, args, kwargs)
        if self.counter is not None and id(operation.overload_packet) in self._packets_with_formula:
            self.counter._count_flops(operation.overload_packet, empty_results, args, kwargs)
        return empty_results

    def _empty_result(self, operation: Operation, args: Any, kwargs: Any) -> Any:
        shape_key = shape_cache_key((*args, *kwargs.items())) if operation.only_creates_tensors else None
        if shape_key is None:
            return operation.function(*args, **kwargs)
        result_key = id(operation.function), shape_key
        result_description = self.cached_results.get(result_key)
        if result_description is not None:
            return _new_tensors(result_description)
        operation_results = operation.function(*args, **kwargs)
        if _is_cacheable(operation_results, args):
            if len(self.cached_results) >= MAX_CACHED_RESULTS:
                self.cached_results.clear()
            self.cached_results[result_key] = _result_description(operation_results)
        return operation_results


class Operation(NamedTuple):
    """A torch operator overload, and the properties that decide whether its result shapes can be cached.

    function: its overload. overload_packet: the operation with all of its overloads.
    is_composed: whether it is implemented by several other operations, some of which may have FLOPs.
    only_creates_tensors: as `_only_creates_tensors` says.
    """

    function: Any
    overload_packet: Any
    is_composed: bool
    only_creates_tensors: bool


_OPERATION_BY_ID: dict[int, Operation] = {}
"""Id of an overload → its operation, which has a reference to it. torch computes the hash of an overload in Python."""


def _describe_operation(function: Any) -> Operation:
    """Returns the cached description of an operation, or creates it."""
    is_composed = torch._C._dispatch_has_kernel_for_dispatch_key(function.name(), "CompositeImplicitAutograd")
    operation = Operation(function, function._overloadpacket, is_composed, _only_creates_tensors(function))
    return _OPERATION_BY_ID.setdefault(id(function), operation)


def _only_creates_tensors(function: Any) -> bool:
    """Whether an operation only creates tensors, whose shapes follow from the inputs' shapes alone.

    Views and changes in place say so in their schema. Operations without tensor inputs (`arange`) are left out.
    """
    op_schema = function._schema
    return (
        not op_schema.is_mutable
        and all(
            returned_value.alias_info is None and str(returned_value.type) in ("Tensor", "Optional[Tensor]")
            for returned_value in op_schema.returns
        )
        and any("Tensor" in str(argument.type) for argument in op_schema.arguments)
        and not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(function.tags)
    )


def _is_cacheable(results: Any, args: tuple[Any, ...]) -> bool:
    """Whether all results are on the meta device, and none of them is an input or a view of an input.

    `dropout` outside training returns its input; `_unsafe_view` returns a view, which its schema does not say.
    """
    result_tensors = [
        tensor for tensor in (results if isinstance(results, tuple) else (results,)) if tensor is not None
    ]
    input_storages = {
        operation_input.untyped_storage()._cdata
        for operation_input in args
        if isinstance(operation_input, torch.Tensor)
    }
    return all(
        isinstance(tensor, torch.Tensor) and tensor.is_meta and tensor.untyped_storage()._cdata not in input_storages
        for tensor in result_tensors
    )


def _result_description(call_result: Any) -> Any:
    """Returns, for each tensor of a result, the arguments with which `torch.empty_strided` creates an equal tensor."""
    if isinstance(call_result, torch.Tensor):
        return call_result.shape, call_result.stride(), call_result.dtype
    return [None if tensor is None else _result_description(tensor) for tensor in call_result]


def _new_tensors(result_description: Any) -> Any:
    if isinstance(result_description, list):
        return tuple(None if element is None else _new_tensors(element) for element in result_description)
    shape, strides, dtype = result_description
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")


_PLAIN_TYPES = frozenset(
    {bool, int, float, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format}
)


def shape_cache_key(operation_input: Any) -> Hashable | None:
    """Returns an input's part of the cache key; None if the input is not on meta or has an unknown type."""
    value_type = type(operation_input)
    if value_type in _PLAIN_TYPES:
        return value_type, operation_input
    if isinstance(operation_input, torch.Tensor):
        if operation_input.is_meta:
            return (operation_input.shape, operation_input.stride(), operation_input.dtype)
        return None
    if isinstance(operation_input, tuple | list):
        element_keys = tuple(
            [
                (type(element), element) if type(element) in _PLAIN_TYPES else shape_cache_key(element)
                for element in operation_input
            ]
        )
        return None if None in element_keys else element_keys
    return None
