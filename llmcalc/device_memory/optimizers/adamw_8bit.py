"""AdamW with 8-bit states of bitsandbytes (bitsandbytes/optim/optimizer.py, `Optimizer2State`; Dettmers 2021,
arXiv:2110.02861). Two 1-byte states with one fp32 scale per block of 256 elements; a tensor of under 4096 elements has
two fp32 states; two code maps of 256 fp32 values are shared by all tensors. So since version 0.44: earlier ones had
blocks of 2048. Its step count is not a tensor.

The step is the source code of bitsandbytes 0.50, whose kernels write into the states and the parameter. Its states
equal those of a run on the CPU, which is not among the tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...algebra import Number, ceil_div, floor_div, minimum
from ...costs.trained_tensors import TrainedTensor, sum_over
from ...evidence import by_source
from ...ops import ParamTensor
from .record import COMPARISON, Optimizer, States

if TYPE_CHECKING:
    from .step import OptimizerStep

BLOCK, LEAST_8BIT, MAP_ENTRIES = 256, 4096, 256
"""Elements per scale; elements from which a tensor has 8-bit states; fp32 values of a code map, one per code."""

WITH_MAPS = 6
"""The number of states of the first tensor with 8-bit states: two of each of states, scales and code maps."""


def _is_large(tensor: ParamTensor) -> Number:
    """1 for a tensor with 8-bit states, 0 for a tensor with fp32 states."""
    return minimum(1, floor_div(tensor.size, LEAST_8BIT))


def states(tensors: Sequence[TrainedTensor], dtype: str) -> States:
    """Each of the two states has large·n bytes and large·⌈n/256⌉ scales, or (1 − large)·n fp32 numbers.

    large is 1 for a tensor with 8-bit states and 0 for others.
    """
    state = sum_over(tensors, lambda t: _is_large(t) * t.size + 4 * (1 - _is_large(t)) * t.size)
    scales = 4 * sum_over(tensors, lambda t: _is_large(t) * ceil_div(t.size, BLOCK))
    maps = 2 * 4 * MAP_ENTRIES * minimum(1, sum_over(tensors, _is_large))
    return {"state1": state, "state2": state, "absmax1": scales, "absmax2": scales, "qmaps": maps}


def step(run: OptimizerStep) -> None:
    """`Optimizer8bit.step`: states are made just before a tensor's first update. Step counts are Python numbers."""
    from ...simulator.tensor import FLOAT32, UINT8

    t, has_maps = (
        run.t,
        any(len(parameter.states) == WITH_MAPS for parameter in run.parameters),
    )  # all tensors share two code maps
    for parameter in run.loop_over(run.updated):
        if parameter.states:
            continue
        with run.counted():
            if parameter.tensor.count < LEAST_8BIT:
                parameter.states = [t.like(parameter.tensor, dtype=FLOAT32) for _ in range(2)]  # state1, state2
                continue
            maps = [] if has_maps else [t.new((MAP_ENTRIES,), FLOAT32) for _ in range(2)]
            has_maps = True
            states = [t.like(parameter.tensor, dtype=UINT8) for _ in range(2)]
            scales = [t.new((ceil_div(parameter.tensor.count, BLOCK),), FLOAT32) for _ in range(2)]  # absmax1, absmax2
            parameter.states = [*states, *scales, *maps]


OPTIMIZER = Optimizer(
    name="adamw-8bit",
    implementations=("loop",),
    states=states,
    step=step,
    not_in_torch="bitsandbytes runs on a GPU alone, and is not a part of torch",
    aliases=("adam8bit",),
    note=f"tensors of under {LEAST_8BIT:,} elements have fp32 states; the others 1 byte per element and an fp32 scale "
    f"per block of {BLOCK} (from the source code of bitsandbytes, not checked by running it)",
    state_format="uint8",
    state_format_note="its states are 8-bit, with fp32 scales",
    witness=by_source("bitsandbytes/optim/optimizer.py", COMPARISON),
)
