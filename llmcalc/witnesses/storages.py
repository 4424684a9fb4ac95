"""What torch holds: the bytes that autograd saves, and those alive during a forward and a backward pass.

On meta tensors have no values; on the CPU a pass takes a fifth of the time. An operation makes the same tensors on both
and on a GPU; what a kernel of the CPU takes for itself is not seen here.

`Alive` is a dispatch mode that follows every storage made under it, as torch's own MemTracker does, without the hooks
that MemTracker puts on modules: these hold gradients of a module's inputs longer than torch itself.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Held(NamedTuple):
    """Bytes beside weights and inputs.

    saved: what autograd keeps for the backward pass. live: alive after the forward pass. forward, backward: the most
    alive during each pass. after: alive after the backward pass, gradients included.
    """

    saved: int
    live: int
    forward: int
    backward: int
    after: int


class Alive(TorchDispatchMode):
    """The bytes of storages on a device that were made under this mode and still exist, and the most so far.

    known: tensors whose storages do not count. log: whether every allocation is noted, false by default.
    device: the type of the device, meta by default.
    """

    def __init__(self, known: Iterable[torch.Tensor] = (), log: bool = False, device: str = "meta") -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own __init__ has no types
        self.device = device
        self.seen = {t.untyped_storage()._cdata for t in known}
        self.now = self.peak = 0
        self.log: list[str] | None = [] if log else None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here. Otherwise torch wraps every call in two more, which keep torch.compile out."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in [out] if isinstance(out, torch.Tensor) else tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.device.type == self.device:
                self._follow(tensor, func)
        return out

    def follow(self, tensors: Iterable[torch.Tensor]) -> None:
        """Follows storages that this mode has not seen being made: `torch.tensor` hides them."""
        for tensor in tensors:
            self._follow(tensor, "made before")

    def _follow(self, tensor: torch.Tensor, func: Any) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.seen:
            return
        self.seen.add(key)
        weakref.finalize(storage, self._gone, key, size)
        self.now += size
        self.peak = max(self.peak, self.now)
        if self.log is not None:
            self.log.append(f"+{size:>12,} {self.now:>12,} {func} {list(tensor.shape)} {tensor.dtype}")

    def _gone(self, key: int, size: int) -> None:
        self.seen.discard(key)
        self.now -= size
        if self.log is not None:
            self.log.append(f"-{size:>12,} {self.now:>12,}")


def saved_bytes(out: torch.Tensor, known: set[Any], device: str) -> int:
    """The bytes of all storages that the graph behind `out` keeps, beside the known ones."""
    kept: dict[int, int] = {}
    for tensor in saved_tensors(out):
        storage = tensor.untyped_storage()
        number = tensor.dtype in (torch.float64, torch.int64) and not tensor.shape  # of Python, on the host everywhere
        if tensor.device.type == device and storage._cdata not in known and not number:
            kept[storage._cdata] = storage.nbytes()
    return sum(kept.values())


_SAVED: dict[Any, list[str]] = {}
"""Kind of node → the attributes that are saved for the backward pass."""


def _saved_by(kind: Any) -> list[str]:
    if kind not in _SAVED:
        _SAVED[kind] = [name for name in dir(kind) if name.startswith("_saved_") or name == "saved_tensors"]
    return _SAVED[kind]


def saved_tensors(out: torch.Tensor) -> list[torch.Tensor]:
    """Every tensor that a node of the graph behind `out` saves for the backward pass."""
    found: list[torch.Tensor] = []
    todo: list[Any] = [out.grad_fn]
    seen: set[Any] = set(todo)
    while todo:
        node = todo.pop()
        leaves = tree_leaves([getattr(node, name) for name in _saved_by(type(node))])
        found += [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        for below, _ in node.next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                todo.append(below)
    return found


def measured(
    run: Callable[[], torch.Tensor],
    outside: Iterable[torch.Tensor],
    log: list[str] | None = None,
    device: str = "meta",
    saves: bool = True,
    follows: type[Alive] = Alive,
) -> Held:
    """Measures a forward pass and the backward pass of its result. outside: weights and inputs.

    saves: whether to look at what the graph saves, which would run checkpointed parts again; 0 is returned if not.
    follows: the dispatch mode.
    """
    outside = list(outside)
    known = {t.untyped_storage()._cdata for t in outside}
    mode = follows(outside, log is not None, device)
    with mode:
        out = run()
        live, forward = mode.now, mode.peak
        saved = saved_bytes(out, known, device) if saves else 0
        mode.peak = mode.now
        if mode.log is not None:
            mode.log.append("--- backward")
        out.backward(torch.empty_like(out))
        backward = mode.peak
    del out
    if log is not None:
        log += mode.log or []
    after = mode.now
    for tensor in outside:
        tensor.grad = None
    return Held(saved, live, forward, backward, after)
