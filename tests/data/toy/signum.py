"""Signum (Bernstein 2018, arXiv:1802.04434): one momentum of every element, and a loop over tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...costs.trained_tensors import TrainedTensor, packed_bytes, total_elements
from .record import Optimizer, StateBytesByName

if TYPE_CHECKING:
    from .step import OptimizerStep


def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
    """The momentum."""
    return {"exp_avg": packed_bytes(total_elements(tensors), dtype)}


def replay_step(run: OptimizerStep) -> None:
    """The update of each tensor is made beside it."""
    for one in run.iterate_parameters(run.updated_parameters):
        if not one.states:
            with run.allocating_states():
                one.states.append(run.aten.new_like(one.tensor, dtype=run.state_format))
        update = run.aten.new_like(one.states[0])
        run.record_in_place_operation(one.tensor, update)


OPTIMIZER = Optimizer(
    name="signum",
    implementations=("loop",),
    state_bytes=state_bytes,
    run_step=replay_step,
    supports_element_shards=True,
)
