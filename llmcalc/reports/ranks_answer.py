"""The memory of a model on the ranks of a layout, and the accelerators on which the largest rank fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..accelerator import Hardware
from ..device_memory.cuda_runtime import Runtime
from ..device_memory.device_memory import DeviceMemory
from ..device_memory.estimate import Memory
from ..device_memory.static import MemoryUse
from ..frameworks.ranks import Cluster, largest_need
from ..sources.preset import Preset
from .answer import MODEL_FIELD
from .memory_answer import MemoryAnswer

if TYPE_CHECKING:
    from ..frameworks.launch.record import Launch
    from .document import Report


@dataclass(frozen=True, repr=False)
class RanksUse(MemoryAnswer, Cluster):
    """The memory of a model on the ranks of a layout.

    preset: the model.
    accelerators: the accelerators that were named; default none.
    workspace: value of CUBLAS_WORKSPACE_CONFIG; default None.
    launch: the file that starts the run; default None.
    chosen_for: the accelerator for which the layout was chosen; default None for a layout that was given.
    """

    preset: Preset = MODEL_FIELD
    accelerators: tuple[Hardware, ...] = ()
    workspace: str | None = None
    launch: Launch | None = None
    chosen_for: Hardware | None = None

    @property
    def memory(self) -> Memory:
        return self.run.memory

    @property
    def device(self) -> DeviceMemory:
        """The memory of the largest rank."""
        return self.device_rank.device

    @property
    def states(self) -> MemoryUse:
        """Static memory of the model on one device, in closed form."""
        return self.memory.states

    def largest_on(self, runtime: Runtime) -> DeviceMemory:
        return largest_need(self.on(runtime)).device

    def report(self) -> Report:
        from .cluster import report

        return report(self.preset, self, self.fits, self.assumed, self.launch, self.chosen_for)
