"""Measures the bytes that autograd saves, and the live bytes during forward and backward passes.

On meta tensors have no values; on the CPU a pass takes a fifth of the time. An operation creates the same tensors on
both and on a GPU. Scratch memory of CPU kernels is not measured here.

`StorageTracker` is a dispatch mode that tracks every storage created under it, as torch's own MemTracker does, without
MemTracker's hooks on modules: these keep gradients of a module's inputs longer than torch itself.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class StorageTracker(TorchDispatchMode):
    """Tracks the bytes and the peak of the storages that are created on a device under this mode.

    known_tensors: tensors whose storages do not count.
    log: whether every allocation is logged; default False.
    device: type of the device; default meta.
    """

    def __init__(
        self, known_tensors: Iterable[torch.Tensor] = (), keeps_log: bool = False, device: str = "meta"
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own __init__ has no types
        self.device = device
        self.tracked: set[Any] = {tensor.untyped_storage()._cdata for tensor in known_tensors}
        self.now: int = 0
        self.peak: int = 0
        self.log: list[str] | None = [] if keeps_log else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Returns false, so that torch leaves out two wrappers per call that only torch.compile needs."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operation_results = function(*args, **(kwargs or {}))
        for tensor in (
            [operation_results] if isinstance(operation_results, torch.Tensor) else tree_leaves(operation_results)
        ):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device:
                self._track_tensor(tensor, function)
        return operation_results

    def track_tensors(self, tensors: Iterable[torch.Tensor]) -> None:
        """Tracks storages whose creation this mode did not see, such as those of `torch.tensor`."""
        for tensor in tensors:
            self._track_tensor(tensor, "created before")

    def _track_tensor(self, tensor: torch.Tensor, function: Any) -> None:
        storage = tensor.untyped_storage()
        storage_key, byte_count = storage._cdata, storage.nbytes()
        if storage_key in self.tracked:
            return
        self.tracked.add(storage_key)
        weakref.finalize(storage, self._release, storage_key, byte_count)
        self.now += byte_count
        self.peak = max(self.peak, self.now)
        if self.log is not None:
            self.log.append(f"+{byte_count:>12,} {self.now:>12,} {function} {list(tensor.shape)} {tensor.dtype}")

    def _release(self, storage_key: int, byte_count: int) -> None:
        self.tracked.discard(storage_key)
        self.now -= byte_count
        if self.log is not None:
            self.log.append(f"-{byte_count:>12,} {self.now:>12,}")


def saved_bytes(output: torch.Tensor, uncounted_storages: set[Any], device: str) -> int:
    """Returns the bytes saved in the autograd graph of `output`. uncounted_storages: storages to leave out."""
    bytes_by_storage: dict[int, int] = {}
    for tensor in saved_tensors(output):
        storage = tensor.untyped_storage()
        # of Python, on the host everywhere
        is_python_number = tensor.dtype in (torch.float64, torch.int64) and not tensor.shape
        if tensor.device.type == device and storage._cdata not in uncounted_storages and not is_python_number:
            bytes_by_storage[storage._cdata] = storage.nbytes()
    return sum(bytes_by_storage.values())


_SAVED_ATTRIBUTES_BY_NODE: dict[Any, list[str]] = {}
"""Cache: class of an autograd graph node → names of the attributes with saved tensors."""


def _saved_attribute_names(autograd_node_type: Any) -> list[str]:
    if autograd_node_type not in _SAVED_ATTRIBUTES_BY_NODE:
        _SAVED_ATTRIBUTES_BY_NODE[autograd_node_type] = [
            attribute
            for attribute in dir(autograd_node_type)
            if attribute.startswith("_saved_") or attribute == "saved_tensors"
        ]
    return _SAVED_ATTRIBUTES_BY_NODE[autograd_node_type]


def saved_tensors(output: torch.Tensor) -> list[torch.Tensor]:
    """Returns every tensor that the autograd graph of `output` saves for the backward pass."""
    tensors: list[torch.Tensor] = []
    pending_nodes: list[Any] = [output.grad_fn]
    visited_nodes: set[Any] = set(pending_nodes)
    while pending_nodes:
        node = pending_nodes.pop()
        saved_values = tree_leaves([getattr(node, attribute) for attribute in _saved_attribute_names(type(node))])
        tensors += [saved_value for saved_value in saved_values if isinstance(saved_value, torch.Tensor)]
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in visited_nodes:
                visited_nodes.add(next_node)
                pending_nodes.append(next_node)
    return tensors
