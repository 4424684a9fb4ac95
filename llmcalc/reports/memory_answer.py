"""The answer about the memory of a model on one device, and the accelerators on which it fits."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING

from ..accelerator import Hardware, MemoryFit
from ..device_memory.cuda_runtime import CudaRuntime, cuda_runtime_of
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import Memory
from ..frozen import frozen
from ..sources.hardware import COMMON_HARDWARE, load_hardware
from ..sources.preset import Preset
from .answer import MODEL_FIELD, Answer
from .draft import with_draft
from .encoder_tokens import with_encoder_tokens

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..studies.draft import DraftCosts
    from .document import Report

ASSUMED_ACCELERATOR = "H100"
"""The name of the accelerator whose CUDA runtime is assumed if the user names none."""


def _capacity_sort_key(accelerator_fit: MemoryFit) -> tuple[int, str]:
    """Returns the sort key of a fit result: the accelerator's memory, smallest first, then its name."""
    return accelerator_fit.capacity_bytes, accelerator_fit.hardware.name


@frozen(repr=False)
class MemoryAnswer(Answer):
    """The base class of memory answers, for one device and for many devices.

    preset: the model.
    accelerators: the accelerators that were named; empty (default) if common ones are listed.
    workspace: value of CUBLAS_WORKSPACE_CONFIG; None (default) if it is not set.
    """

    preset: Preset = MODEL_FIELD
    accelerators: tuple[Hardware, ...] = ()
    workspace: str | None = None

    @property
    @abstractmethod
    def memory(self) -> Memory:
        """The model and the settings whose memory is computed."""

    @abstractmethod
    def largest_device_memory(self, cuda_runtime: CudaRuntime) -> DeviceMemory:
        """Returns the memory of the device that needs most, for accelerators with the given CUDA runtime."""

    @property
    def assumed_accelerator(self) -> str:
        """The name of the accelerator with the assumed CUDA runtime; empty if the question names an accelerator."""
        return "" if self.accelerators else ASSUMED_ACCELERATOR

    @cached_property
    def fits(self) -> list[MemoryFit]:
        """The verdict for each named accelerator, or else for common accelerators by memory size."""
        if not self.accelerators:
            device_memory = self.largest_device_memory(self.memory.cuda_runtime)
            return sorted(map(device_memory.fit_on, map(load_hardware, COMMON_HARDWARE)), key=_capacity_sort_key)
        has_expandable_segments = self.memory.settings.allocator == "expandable"
        return [
            self.largest_device_memory(cuda_runtime_of(hardware, self.workspace, has_expandable_segments)).fit_on(
                hardware
            )
            for hardware in self.accelerators
        ]

    @property
    def ok(self) -> bool:
        """Whether the run fits on a named accelerator; true if none is named."""
        return not self.accelerators or any(accelerator_fit.verdict != "no" for accelerator_fit in self.fits)


@frozen(repr=False)
class DeviceMemoryAnswer(MemoryAnswer, Memory):
    """The answer about the memory of a model on one device.

    preset, accelerators, workspace: as in `MemoryAnswer`.
    draft: a draft of speculative decoding, which the bytes count too; default None.
    find_engine_fit: accelerator → the verdict by the buffers of the engine that usually runs the weights there, or None
        where they are not known; default None for torch's kernels everywhere.
    """

    draft: DraftCosts | None = field(default=None, repr=False, compare=False)
    find_engine_fit: Callable[[Hardware], MemoryFit | None] | None = field(default=None, repr=False, compare=False)

    @property
    def memory(self) -> Memory:
        return self

    def largest_device_memory(self, cuda_runtime: CudaRuntime) -> DeviceMemory:
        return self.memory_for_runtime(cuda_runtime)

    @cached_property
    def engine_fits(self) -> dict[str, MemoryFit]:
        """Accelerator's name → the verdict by the buffers of the engine that usually runs the weights there."""
        if self.find_engine_fit is None:
            return {}
        accelerators = self.accelerators or tuple(map(load_hardware, COMMON_HARDWARE))
        named_fits = ((hardware.name, self.find_engine_fit(hardware)) for hardware in accelerators)
        return {hardware_name: engine_fit for hardware_name, engine_fit in named_fits if engine_fit is not None}

    @cached_property
    def fits(self) -> list[MemoryFit]:
        """Whether the run fits, for each accelerator; by the buffers of the usual engine if these are known."""
        return [
            self.engine_fits.get(accelerator_fit.hardware.name, accelerator_fit) for accelerator_fit in super().fits
        ]

    def report(self) -> Report:
        from .memory import report

        memory_report = report(self.preset, self, self.fits, self.assumed_accelerator, self.engine_fits)
        return with_encoder_tokens(with_draft(memory_report, self.draft, is_counted=True), self.states.encoded_inputs)
