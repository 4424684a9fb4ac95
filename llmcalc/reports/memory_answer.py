"""The memory of one model on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device_memory.estimate import Memory
from ..sources.preset import Preset
from .answer import OF_A_MODEL, Answer

if TYPE_CHECKING:
    from .document import Report


@dataclass(frozen=True, repr=False)
class DeviceUse(Answer, Memory):
    """The memory of a model on one device. preset: the model as it was asked for."""

    preset: Preset = OF_A_MODEL

    def report(self) -> Report:
        from .memory import report

        return report(self.preset, self, [])
