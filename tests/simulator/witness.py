"""What torch holds in a forward and a backward pass, for the tests of kernels and of classes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch

from llmcalc.witnesses.storage_tracker import StorageTracker as Alive
from llmcalc.witnesses.storage_tracker import saved_bytes, saved_tensors

__all__ = ["Alive", "Held", "measured", "saved_bytes", "saved_tensors"]


class Held(NamedTuple):
    """The bytes of a forward and a backward pass, without weights and inputs.

    saved: bytes saved for the backward pass.
    live: bytes after the forward pass.
    forward, backward: peak of each pass.
    after: bytes after the backward pass, including gradients.
    """

    saved: int
    live: int
    forward: int
    backward: int
    after: int


def measured(
    run: Callable[[], torch.Tensor],
    outside: Iterable[torch.Tensor],
    log: list[str] | None = None,
    device: str = "meta",
    measures_saved: bool = True,
    tracker_class: type[Alive] = Alive,
) -> Held:
    """Measures the bytes of a forward pass and its backward pass. outside: storages of weights and inputs.

    measures_saved: whether saved tensors are measured, which would rerun checkpointed parts; saved is 0 if not.
    tracker_class: class of the dispatch mode.
    """
    outside = list(outside)
    outside_storages = {t.untyped_storage()._cdata for t in outside}
    mode = tracker_class(outside, log is not None, device)
    with mode:
        out = run()
        live_bytes, forward = mode.now, mode.peak
        saved_size = saved_bytes(out, outside_storages, device) if measures_saved else 0
        mode.peak = mode.now
        if mode.log is not None:
            mode.log.append("--- backward")
        out.backward(torch.empty_like(out))
        backward = mode.peak
    del out
    if log is not None:
        log += mode.log or []
    bytes_after = mode.now
    for tensor in outside:
        tensor.grad = None
    return Held(saved_size, live_bytes, forward, backward, bytes_after)
