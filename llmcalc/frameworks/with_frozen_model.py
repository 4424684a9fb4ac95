"""Adds the bytes of a frozen model, or of a second loss, to the memory of a training device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..device_memory.device_memory import DeviceMemory, Term
from .frozen_model import FrozenModel, SecondLoss


def with_frozen_model(memory: DeviceMemory, frozen: FrozenModel | SecondLoss, nbytes: int) -> DeviceMemory:
    """Returns a device's memory with the bytes of a frozen model or second loss added at every point in time."""

    def kinds(bytes_by_kind: Mapping[str, int]) -> dict[str, int]:
        return {**bytes_by_kind, frozen.kind: bytes_by_kind.get(frozen.kind, 0) + nbytes}

    tensors, *other_terms = memory.terms
    return replace(
        memory,
        exact_bytes=memory.exact_bytes + nbytes,
        peak_bytes=memory.peak_bytes + nbytes,
        after_step_bytes=memory.after_step_bytes + nbytes,
        reserved_bytes=memory.reserved_bytes + nbytes,
        device_bytes=memory.device_bytes + nbytes,
        peak_at=memory.peak_at._replace(bytes=memory.peak_at.bytes + nbytes),
        by_kind=kinds(memory.by_kind),
        timeline=tuple(point._replace(bytes=point.bytes + nbytes) for point in memory.timeline),
        moments={phase: kinds(bytes_by_kind) for phase, bytes_by_kind in memory.moments.items()},
        terms=(tensors, Term(frozen.name, nbytes, "estimate", frozen.source), *other_terms),
    )
