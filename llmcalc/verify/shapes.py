"""Remembers the shapes of results on meta. torch recomputes many of them in Python, in 0.2 to 1.4 ms each, which is
most of the time of a pass over a small model. FLOPs are counted from the shapes, above this mode, and stay the same.
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

    def like(result: Any) -> Any:
        """What is remembered of a result: of each tensor, what `torch.empty_strided` needs to make another."""
        if isinstance(result, torch.Tensor):
            return result.shape, result.stride(), result.dtype
        return [None if tensor is None else like(tensor) for tensor in result]

    def made(kept: Any) -> Any:
        if isinstance(kept, list):
            return tuple(None if one is None else made(one) for one in kept)
        shape, strides, dtype = kept
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")

    class Remembered(TorchDispatchMode):
        known: ClassVar[dict[Hashable, Any]] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            key = (func, _key((args, kwargs))) if _makes_tensors(func) else None
            if key is None or key[1] is None:
                return func(*args, **kwargs)
            if key in self.known:
                return made(self.known[key])
            out = func(*args, **kwargs)
            if _is_new(out, args):
                if len(self.known) >= MOST:
                    self.known.clear()
                self.known[key] = like(out)
            return out

    return Remembered()  # type: ignore[no-untyped-call]  # torch's own __init__ has no types


@cache
def _makes_tensors(func: Any) -> bool:
    """Whether an operation only makes new tensors, whose shapes follow from those of its inputs.

    Views and changes in place say so in their schema. Operations without tensor inputs (`arange`) are left out.
    """
    import torch

    schema = func._schema
    return (
        not schema.is_mutable
        and all(out.alias_info is None and str(out.type) in ("Tensor", "Optional[Tensor]") for out in schema.returns)
        and any("Tensor" in str(argument.type) for argument in schema.arguments)
        and not {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
    )


def _is_new(out: Any, args: tuple[Any, ...]) -> bool:
    """Whether all results are on meta, and none is an input (as that of `dropout` outside training)."""
    import torch

    tensors = [tensor for tensor in (out if isinstance(out, tuple) else (out,)) if tensor is not None]
    return all(isinstance(t, torch.Tensor) and t.is_meta and all(t is not arg for arg in args) for t in tensors)


def _key(value: Any) -> Hashable | None:
    """A key of an input, as far as results' shapes depend on it; None for one that is not on meta, or not known."""
    import torch

    if isinstance(value, torch.Tensor):
        return (value.shape, value.stride(), value.dtype) if value.is_meta else None
    if isinstance(value, tuple | list):
        keys = tuple([_key(inner) for inner in value])
        return None if None in keys else keys
    if isinstance(value, dict):
        return _key(list(value.items()))
    if value is None or isinstance(value, bool | int | float | str | torch.dtype | torch.layout | torch.device):
        return type(value), value
    return (type(value), str(value)) if isinstance(value, torch.memory_format) else None
