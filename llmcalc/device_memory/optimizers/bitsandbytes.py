"""The optimizers of bitsandbytes (bitsandbytes/optim/optimizer.py, `Optimizer1State` and `Optimizer2State`).

Of 32 bits a tensor has fp32 states, whatever its own format is. Of 8 bits (Dettmers 2021, arXiv:2110.02861) it has
1-byte states with one fp32 scale per block of 256 elements, and a tensor of under 4096 elements has fp32 states; one
code map of 256 fp32 values per state is shared by all tensors. So since version 0.44: earlier ones had blocks of 2048.
The step count is no tensor, and the kernels write into the states and the parameter.

Paged optimizers keep the states of tensors of 100,000 elements and more in managed memory, which lies on the device
while there is room and which the driver may move to the host. It is no memory of torch's allocator.

The Trainer of transformers gives embeddings fp32 states in an optimizer of 8 bits (transformers/trainer.py,
`GlobalOptimManager`): names that end in `-trainer`.

The step is the source code of bitsandbytes 0.50. Its states equal those of a run on the CPU, which is not among the
tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from ...algebra import Number, add, ceil_div, floor_div, minimum
from ...costs.trained_tensors import TrainedTensor, sum_over_tensors
from ...evidence import source_code_witness
from ...frozen import frozen
from ...ops import ParamTensor
from .record import STEP_COMPARISON_TEST, Optimizer, StateBytesByName

if TYPE_CHECKING:
    from .step import OptimizerStep

BLOCK_ELEMENTS, LEAST_8BIT_ELEMENTS, CODE_MAP_ENTRIES = 256, 4096, 256
"""Elements per scale; least elements of a tensor with 8-bit states; fp32 values in a code map, one per code."""

LEAST_PAGED_ELEMENTS = 100_000
"""Least number of elements of a tensor whose optimizer states are paged (`get_state_buffer`)."""


def bitsandbytes_optimizer(
    optimizer_name: str,
    moment_count: Literal[1, 2],
    bits_per_state: Literal[8, 32],
    *aliases: str,
    is_paged: bool = False,
    has_fp32_tables: bool = False,
) -> Optimizer:
    """Returns the `Optimizer` record of a bitsandbytes optimizer with this number of states per element.

    has_fp32_tables: whether tables of embeddings have fp32 states whatever their size; false by default.
    """
    small_tensors_text = (
        f"tensors of under {LEAST_8BIT_ELEMENTS:,} elements have fp32 states; the others 1 byte per element and an "
        f"fp32 scale per block of {BLOCK_ELEMENTS}"
    )
    paging_text = "the driver may move states to the host, where the device has no room for them"
    embeddings_text = "the Trainer gives embeddings fp32 states"
    state_layout = _StateLayout(moment_count, bits_per_state == 8, is_paged, has_fp32_tables)
    notes = (
        (small_tensors_text, state_layout.has_8bit_states),
        (embeddings_text, has_fp32_tables),
        (paging_text, is_paged),
    )
    return Optimizer(
        name=optimizer_name,
        implementations=("loop",),
        state_bytes=state_layout.state_bytes,
        run_step=state_layout.run_step,
        reason_not_in_torch="bitsandbytes runs on a GPU alone, and is not a part of torch",
        aliases=aliases,
        note="; ".join(note_text for note_text, is_relevant in notes if is_relevant),
        state_format="uint8" if state_layout.has_8bit_states else "float32",
        state_format_note="its states are 8-bit, with fp32 scales"
        if state_layout.has_8bit_states
        else "its states are fp32",
        supports_element_shards=not state_layout.has_8bit_states,
        supports_flat_shards=True,
        paged_bytes=state_layout.paged_bytes if is_paged else None,
        witness=source_code_witness(
            "bitsandbytes/optim/optimizer.py, and on an H200 (tests/data/gpu)", STEP_COMPARISON_TEST
        ),
    )


def one_if_large_tensor(tensor: ParamTensor, min_elements: int = LEAST_8BIT_ELEMENTS) -> Number:
    """Returns 1 if a tensor has at least this number of elements, otherwise 0."""
    return minimum(1, floor_div(tensor.size, min_elements))


@frozen
class _StateLayout:
    """How an optimizer of bitsandbytes stores its states: their number, format and place.

    moment_count: states per element. has_8bit_states: whether large tensors have quantized states.
    is_paged, has_fp32_tables: as of `bitsandbytes_optimizer`.
    """

    moment_count: int
    has_8bit_states: bool
    is_paged: bool
    has_fp32_tables: bool

    def has_float32_states(self, is_table: bool) -> bool:
        """Whether a tensor has fp32 states regardless of its size. is_table: whether it is an embedding table."""
        return not self.has_8bit_states or (self.has_fp32_tables and is_table)

    def _split_by_format(self, tensors: Sequence[TrainedTensor]) -> tuple[list[TrainedTensor], list[TrainedTensor]]:
        """Returns the tensors with quantized states, if they are large, and the other tensors."""
        tensors_with_quantized_states: list[TrainedTensor] = []
        tensors_with_fp32_states: list[TrainedTensor] = []
        for tensor in tensors:
            (
                tensors_with_fp32_states
                if self.has_float32_states(tensor.tensor.role == "table")
                else tensors_with_quantized_states
            ).append(tensor)
        return tensors_with_quantized_states, tensors_with_fp32_states

    def state_bytes(self, tensors: Sequence[TrainedTensor], dtype: str) -> StateBytesByName:
        """Returns the bytes of the states: n bytes with ⌈n/256⌉ scales and a shared code map, or n fp32 numbers."""
        tensors_with_quantized_states, tensors_with_fp32_states = self._split_by_format(tensors)
        quantized_bytes = sum_over_tensors(
            tensors_with_quantized_states,
            lambda tensor: (
                one_if_large_tensor(tensor) * tensor.size + 4 * (1 - one_if_large_tensor(tensor)) * tensor.size
            ),
        )
        bytes_by_state: StateBytesByName = {
            f"state{state_number + 1}": add(
                quantized_bytes, sum_over_tensors(tensors_with_fp32_states, lambda tensor: 4 * tensor.size)
            )
            for state_number in range(self.moment_count)
        }
        if self.has_8bit_states:
            scale_bytes = 4 * sum_over_tensors(
                tensors_with_quantized_states,
                lambda tensor: one_if_large_tensor(tensor) * ceil_div(tensor.size, BLOCK_ELEMENTS),
            )
            bytes_by_state |= {f"absmax{state_index + 1}": scale_bytes for state_index in range(self.moment_count)}
            bytes_by_state["qmaps"] = (
                self.moment_count
                * 4
                * CODE_MAP_ENTRIES
                * minimum(1, sum_over_tensors(tensors_with_quantized_states, one_if_large_tensor))
            )
        return bytes_by_state

    def paged_bytes(self, tensors: Sequence[TrainedTensor]) -> Number:
        """Returns the bytes of states in CUDA managed memory, which the driver may move to the host."""
        tensors_with_quantized_states, tensors_with_fp32_states = self._split_by_format(tensors)
        pageable_bytes = [
            sum_over_tensors(
                tensor_group, lambda tensor: one_if_large_tensor(tensor, LEAST_PAGED_ELEMENTS) * tensor.size
            )
            for tensor_group in (tensors_with_quantized_states, tensors_with_fp32_states)
        ]
        return self.moment_count * add(pageable_bytes[0], 4 * pageable_bytes[1])

    def run_step(self, optimizer_step: OptimizerStep) -> None:
        """Replays `Optimizer8bit.step`, which allocates a tensor's states just before its first update."""
        from ...simulator.tensor import FLOAT32, UINT8

        aten = optimizer_step.aten
        max_state_count = 3 * self.moment_count  # of a tensor that owns the code maps: states, scales, maps
        has_code_maps = any(len(parameter.states) == max_state_count for parameter in optimizer_step.parameters)
        for parameter in optimizer_step.iterate_parameters(optimizer_step.updated_parameters):
            if parameter.states:
                continue
            tensor = parameter.tensor
            is_quantized = tensor.numel >= LEAST_8BIT_ELEMENTS and not self.has_float32_states(
                parameter.is_embedding_table
            )
            state_format = UINT8 if is_quantized else FLOAT32
            if self.is_paged and tensor.numel >= LEAST_PAGED_ELEMENTS:
                parameter.states = optimizer_step.allocate_paged_states_like(tensor, state_format, self.moment_count)
            with optimizer_step.allocating_states():
                map_count = self.moment_count if is_quantized and not has_code_maps else 0
                quantization_maps = [aten.new_tensor((CODE_MAP_ENTRIES,), FLOAT32) for _ in range(map_count)]
                has_code_maps = has_code_maps or is_quantized
                parameter.states += [
                    aten.new_like(tensor, dtype=state_format) for _ in range(self.moment_count - len(parameter.states))
                ]
                block_count = ceil_div(tensor.numel, BLOCK_ELEMENTS)
                scale_tensors = [
                    aten.new_tensor((block_count,), FLOAT32) for _ in range(self.moment_count if is_quantized else 0)
                ]
                parameter.states += [*scale_tensors, *quantization_maps]


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
        bitsandbytes_optimizer("adamw-8bit-trainer", 2, 8, has_fp32_tables=True),
        bitsandbytes_optimizer("lion-8bit-trainer", 1, 8, has_fp32_tables=True),
        bitsandbytes_optimizer("paged-adamw-8bit-trainer", 2, 8, is_paged=True, has_fp32_tables=True),
        bitsandbytes_optimizer("paged-lion-8bit-trainer", 1, 8, is_paged=True, has_fp32_tables=True),
    )
}
"""The optimizer records of bitsandbytes: AdamW, and Lion with one state per element (Chen 2023, arXiv:2302.06675)."""
