"""The memory of a model on one device, with the accelerators that hold it."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ..accelerator import Fit, Hardware, fits
from ..device_memory.cuda_runtime import Runtime, runtime_of
from ..device_memory.estimate import Memory
from ..sources.hardware import COMMON_HARDWARE, load_hardware
from ..sources.preset import Preset
from .answer import OF_A_MODEL, Answer

if TYPE_CHECKING:
    from .document import Report

ASSUMED = "H100"
"""The accelerator whose runtime is taken where none is named."""


class MemoryAnswer(Answer):
    """What memory on one device and on many have in common.

    accelerators: those that were named; empty where common ones are listed. workspace: CUBLAS_WORKSPACE_CONFIG.
    """

    accelerators: tuple[Hardware, ...]
    workspace: str | None

    @property
    @abstractmethod
    def one(self) -> Memory:
        """The run on one device."""

    @abstractmethod
    def required_bytes(self, runtime: Runtime) -> int:
        """The bytes that an accelerator with that runtime has to have."""

    @property
    def assumed(self) -> str:
        """The accelerator whose runtime was taken where none was named; empty otherwise."""
        return "" if self.accelerators else ASSUMED

    @cached_property
    def fits(self) -> list[Fit]:
        """Whether the run fits on each accelerator: those that were named in their order, or common ones by size."""
        if not self.accelerators:
            return fits(self.required_bytes(self.one.runtime), map(load_hardware, COMMON_HARDWARE))
        expandable = self.one.settings.allocator == "expandable"
        return [Fit(one, self.required_bytes(runtime_of(one, self.workspace, expandable))) for one in self.accelerators]

    @property
    def ok(self) -> bool:
        """Whether it fits on an accelerator that was named, or none was."""
        return not self.accelerators or any(fit.verdict != "no" for fit in self.fits)


@dataclass(frozen=True, repr=False)
class DeviceUse(MemoryAnswer, Memory):
    """The memory of a model on one device. preset: the model as it was asked for."""

    preset: Preset = OF_A_MODEL
    accelerators: tuple[Hardware, ...] = ()
    workspace: str | None = None

    @property
    def one(self) -> Memory:
        return self

    def required_bytes(self, runtime: Runtime) -> int:
        return self.on(runtime).device_bytes

    def report(self) -> Report:
        from .memory import report

        return report(self.preset, self, self.fits, self.assumed)
