"""Remembers the shapes of elementwise results on meta. torch recomputes each of them in Python, in about 0.2 ms, which
is most of the time of a pass over a small model. Such operations have no FLOPs, so no count depends on this.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode

MOST = 20_000
"""The most results that are remembered."""


@cache
def remembered() -> TorchDispatchMode:
    """The dispatch mode that remembers shapes, for all passes of this process."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Remembered(TorchDispatchMode):
        known: ClassVar[dict[Hashable, tuple[torch.Size, tuple[int, ...], torch.dtype]]] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            key = None
            if torch.Tag.pointwise in func.tags and not func._schema.is_mutable:
                key = _key(func, args, kwargs)
            if key is not None and key in self.known:
                shape, strides, dtype = self.known[key]
                return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
            out = func(*args, **kwargs)
            if key is not None and isinstance(out, torch.Tensor) and out.is_meta:
                if len(self.known) >= MOST:
                    self.known.clear()
                self.known[key] = out.shape, out.stride(), out.dtype
            return out

    return Remembered()  # type: ignore[no-untyped-call]  # torch's own __init__ has no types


def _key(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable | None:
    """A key of all inputs that determine the result's shape; None for other arguments, or any that is not on meta."""
    import torch

    key: list[Hashable] = [func]
    for name, value in (*enumerate(args), *kwargs.items()):
        if isinstance(value, torch.Tensor):
            if not value.is_meta:
                return None
            key.append((name, value.shape, value.stride(), value.dtype))
        elif value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.layout | torch.device):
            key.append((name, type(value), value))
        else:
            return None
    return tuple(key)
