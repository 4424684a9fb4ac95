"""The optimizers of bitsandbytes (bitsandbytes/optim/optimizer.py, `Optimizer1State` and `Optimizer2State`).

Of 32 bits a tensor has fp32 states, whatever its own format is. Of 8 bits (Dettmers 2021, arXiv:2110.02861) it has
1-byte states with one fp32 scale per block of 256 elements, and a tensor of under 4096 elements has fp32 states; one
code map of 256 fp32 values per state is shared by all tensors. So since version 0.44: earlier ones had blocks of 2048.
The step count is no tensor, and the kernels write into the states and the parameter.

Paged optimizers keep the states of tensors of 100,000 elements and more in managed memory, which lies on the device
while there is room and which the driver may move to the host.

The step is the source code of bitsandbytes 0.50. Its states equal those of a run on the CPU, which is not among the
tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

from ...algebra import Number, ceil_div, floor_div, minimum
from ...costs.trained_tensors import TrainedTensor, sum_over
from ...evidence import by_source
from ...ops import ParamTensor
from .record import COMPARISON, Optimizer, States

if TYPE_CHECKING:
    from .step import OptimizerStep

BLOCK, LEAST_8BIT, MAP_ENTRIES = 256, 4096, 256
"""Elements per scale; elements from which a tensor has 8-bit states; fp32 values of a code map, one per code."""

LEAST_PAGED = 100_000
"""Elements from which a tensor has paged states (`get_state_buffer`)."""


def bitsandbytes_optimizer(
    optimizer_name: str, moments: Literal[1, 2], bits: Literal[8, 32], *aliases: str, is_paged: bool = False
) -> Optimizer:
    """Returns the record of an optimizer with this number of states per element."""
    formats = (
        f"tensors of under {LEAST_8BIT:,} elements have fp32 states; the others 1 byte per element and an fp32 scale "
        f"per block of {BLOCK} (from the source code of bitsandbytes, not checked by running it)"
    )
    paging = "the driver may move states to the host, where the device has no room for them"
    in_8_bits = bits == 8
    return Optimizer(
        name=optimizer_name,
        implementations=("loop",),
        states=partial(state_bytes, moments, in_8_bits),
        step=partial(run_step, moments, in_8_bits),
        not_in_torch="bitsandbytes runs on a GPU alone, and is not a part of torch",
        aliases=aliases,
        note="; ".join(text for text, applies in ((formats, in_8_bits), (paging, is_paged)) if applies),
        state_format="uint8" if in_8_bits else "float32",
        state_format_note="its states are 8-bit, with fp32 scales" if in_8_bits else "its states are fp32",
        by_element=not in_8_bits,
        paged=paged_bytes(moments, in_8_bits) if is_paged else None,
        witness=by_source("bitsandbytes/optim/optimizer.py", COMPARISON),
    )


def is_large(tensor: ParamTensor, min_elements: int = LEAST_8BIT) -> Number:
    """Returns the tensors with projected gradients, and the other tensors."""
    return minimum(1, floor_div(tensor.size, min_elements))


def state_bytes(moments: int, in_8_bits: bool, tensors: Sequence[TrainedTensor], dtype: str) -> States:
    """Returns the bytes of the states: n bytes with ⌈n/256⌉ scales and a shared code map, or n fp32 numbers."""
    is_quantized = is_large if in_8_bits else lambda tensor: 0
    state = sum_over(tensors, lambda t: is_quantized(t) * t.size + 4 * (1 - is_quantized(t)) * t.size)
    sizes: States = {f"state{i + 1}": state for i in range(moments)}
    if in_8_bits:
        scales = 4 * sum_over(tensors, lambda t: is_quantized(t) * ceil_div(t.size, BLOCK))
        sizes |= {f"absmax{i + 1}": scales for i in range(moments)}
        sizes["qmaps"] = moments * 4 * MAP_ENTRIES * minimum(1, sum_over(tensors, is_quantized))
    return sizes


def paged_bytes(moments: int, in_8_bits: bool) -> Callable[[Sequence[TrainedTensor]], Number]:
    """Returns the function that counts the bytes of states in managed memory."""
    return lambda tensors: (
        moments * (1 if in_8_bits else 4) * sum_over(tensors, lambda t: is_large(t, LEAST_PAGED) * t.size)
    )


def run_step(moments: int, in_8_bits: bool, optimizer_step: OptimizerStep) -> None:
    """Runs `Optimizer8bit.step`, which allocates a tensor's states just before its first update."""
    from ...simulator.tensor import FLOAT32, UINT8

    aten = optimizer_step.t
    states_with_maps = 3 * moments  # of a tensor that owns the code maps: states, scales, maps
    has_maps = any(len(parameter.states) == states_with_maps for parameter in optimizer_step.parameters)
    for parameter in optimizer_step.loop_over(optimizer_step.updated):
        if parameter.states:
            continue
        with optimizer_step.counted_as_states():
            if not in_8_bits or parameter.tensor.count < LEAST_8BIT:
                parameter.states = [aten.like(parameter.tensor, dtype=FLOAT32) for _ in range(moments)]
                continue
            maps = [] if has_maps else [aten.new_tensor((MAP_ENTRIES,), FLOAT32) for _ in range(moments)]
            has_maps = True
            states = [aten.like(parameter.tensor, dtype=UINT8) for _ in range(moments)]
            scales = [aten.new_tensor((ceil_div(parameter.tensor.count, BLOCK),), FLOAT32) for _ in range(moments)]
            parameter.states = [*states, *scales, *maps]


OPTIMIZERS = {
    record.name: record
    for record in (
        bitsandbytes_optimizer("lion", 1, 32, "lion-32bit"),
        bitsandbytes_optimizer("lion-8bit", 1, 8, "lion8bit"),
        bitsandbytes_optimizer("adamw-8bit", 2, 8, "adam8bit", "adamw8bit", "adam-8bit", "adamw-bnb-8bit"),
        bitsandbytes_optimizer("paged-adamw", 2, 32, "paged-adamw-32bit", is_paged=True),
        bitsandbytes_optimizer("paged-adamw-8bit", 2, 8, is_paged=True),
        bitsandbytes_optimizer("paged-lion", 1, 32, "paged-lion-32bit", is_paged=True),
        bitsandbytes_optimizer("paged-lion-8bit", 1, 8, is_paged=True),
    )
}
"""AdamW, and Lion with one state per element (Chen 2023, arXiv:2302.06675)."""
