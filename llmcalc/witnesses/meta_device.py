"""Creates tensors on meta without running their initializers, because tensors there have no values.

torch runs the initializers of a module on meta too, which is half of the time in which a small model is built.

This module imports torch, so import it only in functions that run torch.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._device import DeviceContext

INITIALIZERS = frozenset(
    {
        *(value for name, value in vars(torch.nn.init).items() if name.endswith("_") and callable(value)),
        torch.Tensor.normal_,
        torch.Tensor.uniform_,
        torch.Tensor.fill_,
        torch.Tensor.zero_,
    }
)
"""Functions that write values into a tensor and return it."""


class MetaDevice(DeviceContext):
    """Creates tensors on meta as `torch.device("meta")` does, but skips their initializers."""

    def __init__(self) -> None:
        super().__init__("meta")

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in INITIALIZERS:
            tensor = args[0] if args else kwargs["tensor"]
            if tensor.is_meta:
                return tensor
        return super().__torch_function__(function, types, args, kwargs)  # type: ignore[no-untyped-call]


def device_context(device: str) -> AbstractContextManager[Any]:
    """Returns the context manager in which modules are created on a device."""
    return MetaDevice() if device == "meta" else torch.device(device)
