"""The temporary memory of a sum over rows on a GPU: partial sums, where several thread blocks share an output.

Source: aten/src/ATen/native/cuda/Reduce.cuh, `setReduceConfig` and `ReduceConfig::global_memory_size`. The sizes of an
H200 were equal to it (tests/data/gpu).
"""

from __future__ import annotations

from ..algebra import ceil_div

MAX_BLOCK_THREADS = 512
"""Largest number of threads per block (`MAX_REDUCE_THREADS`)."""

WARP_THREADS = 32
VECTOR_OUTPUTS = 4
"""Largest number of outputs that a thread reads at once."""

FEWEST_THREAD_VALUES, MAX_THREAD_VALUES = 16, 256
"""Smallest and largest number of values per thread; above the largest, an output is divided among thread blocks."""

THREADS_OF_MULTIPROCESSOR = 2048
"""Largest number of threads that a multiprocessor of a data-centre GPU runs at once."""

SUM_BYTES = COUNTER_BYTES = 4
"""Bytes per partial sum (float32), and per counter of finished blocks in a column of blocks."""


def scratch_bytes(output_count: int, row_count: int, multiprocessors: int) -> tuple[int, int]:
    """Returns the bytes of partial sums and counters of a row reduction; 0 if one thread block computes an output.

    output_count: elements of a row. row_count: rows that are summed. multiprocessors: those of the GPU.
    """
    vector_width = VECTOR_OUTPUTS
    while output_count % vector_width:
        vector_width //= 2
    thread_count = MAX_BLOCK_THREADS // vector_width
    block_columns, block_rows = (
        min(_power_of_two(element_count), thread_count) for element_count in (output_count // vector_width, row_count)
    )
    block_height = min(block_rows, thread_count // min(block_columns, WARP_THREADS))
    block_width = min(block_columns, thread_count // block_height)
    values_per_thread = row_count
    if values_per_thread < block_height * FEWEST_THREAD_VALUES and values_per_thread < MAX_THREAD_VALUES:
        return 0, 0
    values_per_thread = ceil_div(values_per_thread, block_height)
    block_count = ceil_div(output_count // vector_width, block_width)
    blocks_of_full_gpu = multiprocessors * (THREADS_OF_MULTIPROCESSOR // (block_width * block_height))
    if values_per_thread < MAX_THREAD_VALUES or block_count > blocks_of_full_gpu:
        return 0, 0
    blocks_per_output = max(
        min(ceil_div(blocks_of_full_gpu, block_count), ceil_div(values_per_thread, FEWEST_THREAD_VALUES)),
        ceil_div(values_per_thread, MAX_THREAD_VALUES),
    )
    if blocks_per_output > 1:
        return (SUM_BYTES * output_count * blocks_per_output * block_width * vector_width, COUNTER_BYTES * block_count)
    return (0, 0)


def _power_of_two(upper_bound: int) -> int:
    """Returns the largest power of two that is at most `upper_bound`."""
    return 1 << (upper_bound.bit_length() - 1)
