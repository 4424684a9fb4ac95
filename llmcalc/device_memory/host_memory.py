"""Host memory of a run on one device: paged optimizer states, and offloaded activations.

Paged states are in managed memory: on the device while it has room, and no memory of torch's allocator.

Pinned tensors come from torch's allocator of pinned memory, which takes the next power of two of bytes
(aten/src/ATen/core/CachingHostAllocator.h, `allocate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ..model import ModelSpec
from ..simulator.layer_stacks import SHORT_RUN_REPEATS, layer_stacks
from .device_memory import DeviceMemory, MemoryTerm
from .static import StaticMemory
from .training import TrainingConfig, TrainingRun


def pinned_bytes(nbytes: int) -> int:
    """Returns the bytes of pinned host memory that a tensor occupies."""
    return 1 << (nbytes - 1).bit_length() if nbytes else 0


def host_terms(
    spec: ModelSpec, static_memory: StaticMemory, training_config: TrainingConfig, recompute_period: int
) -> tuple[MemoryTerm, ...]:
    """Returns the terms of host memory in training. static_memory: the run's persistent memory.

    recompute_period: as in `device_memory`.
    """
    terms: list[MemoryTerm] = []
    if training_config.offloads_activations:
        offloaded_tensor_bytes = offloaded_bytes(spec, training_config, recompute_period)
        source_file = "torchtune/training/_activation_offloading.py, OffloadActivations, with pinned tensors"
        terms.append(MemoryTerm("activations (pinned)", offloaded_tensor_bytes, "source", source_file))
    if paged_bytes(static_memory):
        terms.append(MemoryTerm("paged optimizer states, at most", paged_bytes(static_memory), "source", PAGED_SOURCE))
    return tuple(terms)


PAGED_SOURCE = "bitsandbytes/functional.py, get_paged: managed memory, on the device while it has room"


def paged_bytes(static_memory: StaticMemory) -> int:
    """Returns the bytes of paged optimizer states, which the driver may move to the host."""
    return 0 if static_memory.optimizer is None else int(static_memory.optimizer.paged_bytes)


def with_paged_states(device: DeviceMemory, static_memory: StaticMemory) -> DeviceMemory:
    """Returns a device's memory with the paged optimizer states added as a separate term."""
    paged_state_bytes = paged_bytes(static_memory)
    if not paged_state_bytes:
        return device
    state_term = MemoryTerm("paged optimizer states", paged_state_bytes, "estimate", PAGED_SOURCE)
    return replace(
        device,
        device_bytes=device.device_bytes + paged_state_bytes,
        terms=(*device.terms, state_term),
        paged_bytes=paged_state_bytes,
    )


def offloaded_bytes(spec: ModelSpec, training_config: TrainingConfig, recompute_period: int) -> int:
    """Returns pinned bytes of a micro-batch's offloaded activations, extrapolated linearly in the number of layers."""
    stacks = layer_stacks(spec, recompute_period)
    short_run_repeats = {index: SHORT_RUN_REPEATS for index, stack in enumerate(stacks) if stack.is_extrapolated}
    short_run_bytes = _offloaded_bytes_of_pass(spec, training_config, short_run_repeats)
    return short_run_bytes + sum(
        (stacks[stack_index].repeat_count - SHORT_RUN_REPEATS)
        * (
            _offloaded_bytes_of_pass(spec, training_config, {**short_run_repeats, stack_index: SHORT_RUN_REPEATS + 1})
            - short_run_bytes
        )
        for stack_index in short_run_repeats
    )


def _offloaded_bytes_of_pass(
    spec: ModelSpec, training_config: TrainingConfig, repeats_by_stack: Mapping[int, int]
) -> int:
    """Returns the pinned bytes that a forward pass offloads with these numbers of layer-pattern repeats."""
    training_run = TrainingRun(spec, replace(training_config, microbatches=1), repeats_by_stack)
    training_run.set_up()
    training_run.replace_batch()
    training_run.forward()
    return sum(map(pinned_bytes, training_run.offloaded_bytes))
