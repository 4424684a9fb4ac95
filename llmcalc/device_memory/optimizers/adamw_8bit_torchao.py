"""AdamW with 8-bit states of torchao (torchao/optim/adam.py and subclass_8bit.py of version 0.18).

A tensor of at least 4096 elements, in whole blocks of 256, has two 1-byte states, each with one fp32 scale per block
and a code map of its own; other tensors have two states in their own format. The step count is on the host. The step of
a tensor is one compiled function, which is taken to make no temporary tensors: its kernels were not run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...algebra import Number, floor_div, minimum
from ...costs.trained_tensors import TrainedTensor, bytes_of, sum_over
from ...evidence import by_source
from ...ops import ParamTensor
from .bitsandbytes import BLOCK, LEAST_8BIT, MAP_ENTRIES, is_large
from .record import COMPARISON, Optimizer, States

if TYPE_CHECKING:
    from .step import OptimizerStep


def _is_quantized(tensor: ParamTensor) -> Number:
    """Returns 1 for a tensor with 8-bit states, else 0."""
    remainder = tensor.size - BLOCK * floor_div(tensor.size, BLOCK)
    return is_large(tensor) * (1 - minimum(1, remainder))


def states(tensors: Sequence[TrainedTensor], dtype: str) -> States:
    """Returns the bytes of two states: n bytes with n/256 scales and a code map, or n numbers in the tensor's
    format."""
    codes = sum_over(tensors, lambda t: _is_quantized(t) * t.size)
    other_states = bytes_of(sum_over(tensors, lambda t: (1 - _is_quantized(t)) * t.size), dtype)
    scales = 4 * sum_over(tensors, lambda t: _is_quantized(t) * floor_div(t.size, BLOCK))
    maps = 2 * 4 * MAP_ENTRIES * sum_over(tensors, _is_quantized)
    return {"exp_avg": codes + other_states, "exp_avg_sq": codes + other_states, "scales": 2 * scales, "qmaps": maps}


def step(run: OptimizerStep) -> None:
    """Runs `_AdamBase.step`, which allocates the states just before a tensor's first update."""
    from ...simulator.tensor import FLOAT32, UINT8

    t = run.t
    for parameter in run.loop_over(run.updated):
        if parameter.states:
            continue
        size, tensor = parameter.tensor.count, parameter.tensor
        with run.counted_as_states():
            for _ in range(2):
                if size < LEAST_8BIT or size % BLOCK:
                    parameter.states.append(t.like(tensor, dtype=run.dtype))
                else:
                    parameter.states += [t.like(tensor, dtype=UINT8), t.new((size // BLOCK,), FLOAT32)]
                    parameter.states.append(t.new((MAP_ENTRIES,), FLOAT32))


OPTIMIZER = Optimizer(
    name="adamw-8bit-torchao",
    implementations=("loop",),
    states=states,
    step=step,
    not_in_torch="torchao is not a part of torch",
    aliases=("adamw-torch-8bit", "ao-adamw-8bit"),
    note=f"tensors of under {LEAST_8BIT:,} elements, or not in whole blocks of {BLOCK}, have states in their own "
    f"format; the others 1 byte per element and an fp32 scale per block",
    witness=by_source("torchao/optim/adam.py; its compiled step was not run", COMPARISON),
)
