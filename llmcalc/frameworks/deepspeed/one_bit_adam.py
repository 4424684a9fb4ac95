"""Replays one rank's training steps with 1-bit Adam or 0/1 Adam, which compress messages to one bit per element.

Beside Adam's states of the flat float32 copy they keep the errors of the compression: those of the rank, and those of
the part that it sums; 0/1 Adam also the sum of its local steps. 1-bit Adam creates its errors when the compression
begins. Source: deepspeed/runtime/fp16/onebit/{adam,zoadam}.py of 0.19.8, `step`; runtime/engine.py,
`_configure_fp16_optimizer`, for the flat copy.
"""

from __future__ import annotations

from ...algebra import ceil_div
from ...simulator.tensor import FLOAT32, Storage, count_storages_as
from .replicated import FlatCopyRun
from .settings import ZERO_ONE_ADAM


class OneBitAdamRun(FlatCopyRun):
    """One rank's training steps with messages that are compressed to one bit per element.

    states: the errors of the compression, and with 0/1 Adam the sum of local steps.
    """

    states: list[Storage]

    def prepare_training(self) -> None:
        """Allocates flat fp32 weights, Adam's states and the compression errors."""
        super().prepare_training()
        flat_elements = self.updated_parameters[0].tensor.shape[0]
        error_sizes = [flat_elements, ceil_div(flat_elements, self.rank_count)]
        if self.settings.optimizer.lower() == ZERO_ONE_ADAM:
            error_sizes.append(flat_elements)
        with count_storages_as(self.meter, "optimizer"):
            self.states = [Storage(self.meter, element_count * FLOAT32.bytes) for element_count in error_sizes]
