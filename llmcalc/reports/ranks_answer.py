"""The answer about the memory of a layout's ranks, and the accelerators on which the largest rank fits."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from ..accelerator import Hardware, MemoryFit
from ..device_memory.cuda_runtime import VENDORS_WITHOUT_CUDA_CONTEXT, CudaRuntime, cuda_runtime_of
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import Memory
from ..device_memory.static import StaticMemory
from ..errors import InputError
from ..frameworks.ranks import Cluster, rank_with_most_memory
from ..frameworks.registry import DEFAULT_FRAMEWORK
from ..frozen import frozen
from ..sources.hardware import load_hardware
from .memory_answer import ASSUMED_ACCELERATOR, MemoryAnswer

if TYPE_CHECKING:
    from ..frameworks.framework import Framework
    from ..frameworks.launch.launch_types import Launch
    from ..studies.rollout_phases import RolloutPhase
    from .document import Report


@frozen(repr=False)
class RanksMemoryAnswer(MemoryAnswer, Cluster):
    """The answer about the memory of a model on the ranks of a layout.

    preset, accelerators, workspace: as in `MemoryAnswer`.
    launch: the file that starts the run; default None.
    hardware_of_chosen_layout: the accelerator for which the layout was chosen; default None for a given layout.
    planned_framework: the framework that other commands take for the same options, if it is another one; default None.
    engine_fit: the verdict on the fullest device by the buffers of the engine that usually runs the weights on
        `hardware_of_chosen_layout`; default None for torch's kernels.
    """

    launch: Launch | None = None
    hardware_of_chosen_layout: Hardware | None = None
    planned_framework: Framework | None = None
    engine_fit: MemoryFit | None = None

    @property
    def memory(self) -> Memory:
        return self.run.memory

    @property
    def device(self) -> DeviceMemory:
        """The device memory of the rank that needs the most."""
        return self.device_rank.device

    def phases_on_hardware(self, hardware: Hardware) -> list[RolloutPhase]:
        """Returns the phases of a reinforcement-learning run on an accelerator; none for any other run."""
        if self.launch is None or self.launch.rollout is None:
            return []
        from ..studies.rollout_phases import rollout_phases

        has_expandable_segments = self.memory.settings.allocator == "expandable"
        if self.accelerators:
            cuda_runtime = cuda_runtime_of(hardware, self.workspace, has_expandable_segments)
        else:
            cuda_runtime = self.memory.cuda_runtime
        return rollout_phases(self, self.launch.rollout, self.preset, hardware, cuda_runtime)

    @cached_property
    def phases(self) -> list[RolloutPhase]:
        """The reinforcement-learning phases on the first named or assumed accelerator."""
        hardware = self.accelerators[0] if self.accelerators else load_hardware(f"{ASSUMED_ACCELERATOR.lower()}-sxm")
        return self.phases_on_hardware(hardware)

    @cached_property
    def fits(self) -> list[MemoryFit]:
        """The verdict for each accelerator on whether all phases of the run fit.

        Of accelerators that the user does not name, those are left out on which the rollouts' engine does not start.
        """
        if self.engine_fit is not None:
            return [self.engine_fit]
        _ = self.phases  # raises the error of an engine that starts on no accelerator
        return [
            highest_phase_fit
            for accelerator_fit in super().fits
            if self._software_runs_on(accelerator_fit.hardware)
            and (highest_phase_fit := self._fit_of_highest_phase(accelerator_fit)) is not None
        ]

    def _software_runs_on(self, hardware: Hardware) -> bool:
        """Whether the framework and the rollout engine support an accelerator; true for named accelerators.

        Ranks that train exchange tensors by NCCL or RCCL, which chips such as Apple's do not have.
        """
        needs_nccl = self.trains and (self.layout.world_size > 1 or self.framework.name != DEFAULT_FRAMEWORK)
        if needs_nccl and hardware.vendor in VENDORS_WITHOUT_CUDA_CONTEXT and not self.accelerators:
            return False
        return self._engine_runs_on(hardware)

    def _engine_runs_on(self, hardware: Hardware) -> bool:
        """Whether the rollout engine supports an accelerator; true for a run without a rollout engine."""
        rollout = None if self.launch is None else self.launch.rollout
        if rollout is None or not rollout.engine or self.accelerators:
            return True
        from ..frameworks.engines.registry import engine

        return engine(rollout.engine).runs_on(hardware)

    def _fit_of_highest_phase(self, accelerator_fit: MemoryFit) -> MemoryFit | None:
        """Returns the verdict by the reinforcement-learning phase that needs the most memory.

        None for an unnamed accelerator on which the rollouts' engine does not start, such as one without fp8.
        """
        try:
            phases = self.phases_on_hardware(accelerator_fit.hardware)
        except InputError:
            if self.accelerators:
                raise
            return None
        peak_bytes = max((phase.bytes for phase in phases), default=0)
        if peak_bytes <= accelerator_fit.needed_bytes:
            return accelerator_fit
        return MemoryFit(accelerator_fit.hardware, peak_bytes)

    @property
    def states(self) -> StaticMemory:
        """The model's static memory on one device, in closed form."""
        return self.memory.states

    def largest_device_memory(self, cuda_runtime: CudaRuntime) -> DeviceMemory:
        return rank_with_most_memory(self.memory_of_ranks(cuda_runtime)).device

    def report(self) -> Report:
        from .cluster import report

        return report(
            self.preset,
            self,
            self.fits,
            self.assumed_accelerator,
            self.launch,
            self.hardware_of_chosen_layout,
            self.phases,
            self.planned_framework,
            self.engine_fit,
        )
