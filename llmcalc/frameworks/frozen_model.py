"""A frozen copy of the trained model on the same devices: the reference model of training on preferences.

Its weights stay all the time. Its pass without gradients runs while the trained model's activations are saved, and adds
its logits to theirs. DPO's own loss keeps no logits in float32 beside those of a 16-bit model, so that both together
need no more than the loss of supervised training, with which a step is counted (trl/trainer/dpo_trainer.py,
`_compute_loss`; trl/trainer/utils.py, `selective_log_softmax`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..device_memory.device_memory import DeviceMemory, Term
from ..units import DTYPE_BITS


@dataclass(frozen=True)
class FrozenModel:
    """A frozen copy of the trained model.

    source: the file that loads it.
    dtype: number format of its weights; empty (default) for that of the trained weights.
    ranks: ranks that divide its weights; 1 by default.
    name: its name in reports; "reference model" by default.
    """

    source: str
    dtype: str = ""
    ranks: int = 1
    name: str = "reference model"

    def bytes(self, parameters: int, trained_dtype: str) -> int:
        """Returns its bytes per device. parameters: of the model. trained_dtype: format of the trained weights."""
        return -(-parameters // self.ranks) * DTYPE_BITS[self.dtype or trained_dtype] // 8

    def data(self) -> dict[str, object]:
        """The model in a JSON document."""
        return {"name": self.name, "dtype": self.dtype or None, "ranks": self.ranks, "source": self.source}


def with_frozen_model(memory: DeviceMemory, frozen: FrozenModel, size: int) -> DeviceMemory:
    """Returns the memory of a device with so many bytes of frozen weights, which stay all the time."""

    def kinds(bytes_by_kind: Mapping[str, int]) -> dict[str, int]:
        return {**bytes_by_kind, "weights": bytes_by_kind.get("weights", 0) + size}

    tensors, *others = memory.terms
    return replace(
        memory,
        exact_bytes=memory.exact_bytes + size,
        peak_bytes=memory.peak_bytes + size,
        after_step_bytes=memory.after_step_bytes + size,
        reserved_bytes=memory.reserved_bytes + size,
        device_bytes=memory.device_bytes + size,
        peak_at=memory.peak_at._replace(bytes=memory.peak_at.bytes + size),
        by_kind=kinds(memory.by_kind),
        timeline=tuple(point._replace(bytes=point.bytes + size) for point in memory.timeline),
        moments={phase: kinds(bytes_by_kind) for phase, bytes_by_kind in memory.moments.items()},
        terms=(tensors, Term(frozen.name, size, "estimate", frozen.source), *others),
    )
