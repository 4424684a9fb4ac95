"""torchao's AdamW optimizers (torchao/optim/adam.py, subclass_8bit.py and subclass_4bit.py of version 0.18).

A tensor of at least 4096 elements, in whole blocks of 256, has two states of 8 or 4 bits per element, each with one
fp32 scale per block and a code map of its own; other tensors have two states in their own format. 4-bit states have
blocks of 256 too, as transformers asks (trainer_optimizer.py of 5.23); torchao's own default is 128. The step count is
on the host. The step of a tensor is one compiled function. As a scale is the largest number of its block, torch 2.11
writes both new states as fp32 tensors and their scales before it quantizes them, and for codes of 4 bits, of which two
are a byte, 64-bit codes too; measured on an H200 (tests/data/gpu).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ...algebra import Number, floor_div, minimum
from ...costs.trained_tensors import TrainedTensor, packed_bytes, sum_over_tensors
from ...evidence import source_code_witness
from ...ops import ParamTensor
from .bitsandbytes import BLOCK_ELEMENTS, LEAST_8BIT_ELEMENTS, one_if_large_tensor
from .record import STEP_COMPARISON_TEST, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from ...simulator.tensor import Dtype
    from .step import OptimizerStep


def torchao_adamw(optimizer_name: str, bits_per_state: Literal[4, 8], *aliases: str) -> Optimizer:
    """Returns the `Optimizer` record of torchao's AdamW with states of `bits_per_state` bits per element."""
    codes_per_byte, codebook_size = 8 // bits_per_state, 2**bits_per_state

    def state_bytes(tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
        """Returns the bytes of two states per element: quantized codes, scales and code map, or plain numbers."""
        code_bytes = sum_over_tensors(
            tensors, lambda tensor: _one_if_quantized_states(tensor) * floor_div(tensor.size, codes_per_byte)
        )
        other_state_bytes = packed_bytes(
            sum_over_tensors(tensors, lambda tensor: (1 - _one_if_quantized_states(tensor)) * tensor.size), dtype
        )
        scale_bytes = 4 * sum_over_tensors(
            tensors, lambda tensor: _one_if_quantized_states(tensor) * floor_div(tensor.size, BLOCK_ELEMENTS)
        )
        map_bytes = 2 * 4 * codebook_size * sum_over_tensors(tensors, _one_if_quantized_states)
        moment_bytes = code_bytes + other_state_bytes
        return {"exp_avg": moment_bytes, "exp_avg_sq": moment_bytes, "scales": 2 * scale_bytes, "qmaps": map_bytes}

    def replay_step(optimizer_step: OptimizerStep) -> None:
        """Replays `_AdamBase.step`, which allocates the states just before a tensor's first update."""
        from ...simulator.tensor import FLOAT32, INT64, UINT8

        aten = optimizer_step.aten
        for parameter in optimizer_step.iterate_parameters(optimizer_step.updated_parameters):
            element_count, stored_tensor = parameter.tensor.numel, parameter.tensor
            is_quantized = element_count >= LEAST_8BIT_ELEMENTS and element_count % BLOCK_ELEMENTS == 0
            with optimizer_step.allocating_states():
                for _ in range(0 if parameter.states else 2):
                    if not is_quantized:
                        parameter.states.append(aten.new_like(stored_tensor, dtype=optimizer_step.state_format))
                    else:
                        parameter.states.append(aten.new_tensor((element_count // codes_per_byte,), UINT8))
                        parameter.states += [
                            aten.new_tensor((element_count // BLOCK_ELEMENTS,), FLOAT32),
                            aten.new_tensor((codebook_size,), FLOAT32),
                        ]
            if is_quantized:
                _run_compiled_step(optimizer_step, element_count, INT64 if bits_per_state == 4 else None)

    return Optimizer(
        name=optimizer_name,
        implementations=("loop",),
        state_bytes=state_bytes,
        run_step=replay_step,
        reason_not_in_torch="torchao is not a part of torch",
        aliases=aliases,
        supports_row_shards=True,  # `_new_buffer` quantizes the states of the local tensor
        note=f"tensors of under {LEAST_8BIT_ELEMENTS:,} elements, or not in whole blocks of {BLOCK_ELEMENTS}, have "
        f"states in their own format; the others {bits_per_state} bits per element and an fp32 scale per block",
        witness=source_code_witness("torchao/optim/adam.py, and its compiled step on an H200", STEP_COMPARISON_TEST),
    )


def _run_compiled_step(optimizer_step: OptimizerStep, element_count: Number, code_format: Dtype | None) -> None:
    """Allocates and frees what a compiled step needs: both new states, their scales, and codes in a wide format."""
    from ...simulator.tensor import FLOAT32

    number_formats = [FLOAT32, FLOAT32, *([] if code_format is None else [code_format, code_format])]
    new_states = [optimizer_step.aten.new_tensor((element_count,), number_format) for number_format in number_formats]
    new_states += [optimizer_step.aten.new_tensor((element_count // BLOCK_ELEMENTS,), FLOAT32) for _ in range(2)]
    del new_states


def _one_if_quantized_states(tensor: ParamTensor) -> Number:
    """Returns 1 if a parameter is large enough for quantized optimizer states, otherwise 0."""
    elements_in_last_block = tensor.size - BLOCK_ELEMENTS * floor_div(tensor.size, BLOCK_ELEMENTS)
    return one_if_large_tensor(tensor) * (1 - minimum(1, elements_in_last_block))


OPTIMIZERS = {
    "adamw-8bit-torchao": torchao_adamw("adamw-8bit-torchao", 8, "adamw-torch-8bit", "ao-adamw-8bit"),
    "adamw-4bit-torchao": torchao_adamw("adamw-4bit-torchao", 4, "adamw-torch-4bit", "ao-adamw-4bit"),
}
"""The optimizer records of torchao: AdamW with 8-bit and with 4-bit states (Li 2023, arXiv:2309.01507)."""
