"""The memory of one rank in plain PyTorch training: tensor parallelism, pipelines, DDP replicas."""

from __future__ import annotations

from dataclasses import replace

from ...device_memory.cuda_runtime import CudaRuntime
from ...device_memory.device_memory import TORCH_VERSION, DeviceMemory, MemoryTerm, summarize_memory
from ...device_memory.host_memory import with_paged_states
from ...errors import InputError
from ...simulator.layer_stacks import layer_stacks
from ..framework import RunOnRanks
from ..fsdp2.settings import titan_settings
from .pipeline import RankSetup, check_torch
from .pipeline_replay import replay_rank_on_allocator


def rank_memory(training_run: RunOnRanks, rank: int, cuda_runtime: CudaRuntime) -> DeviceMemory:
    """Returns the device memory of one rank. Raises `InputError` for a layout that is not supported or not modelled."""
    spec, training_config = training_run.memory.spec, training_run.memory.training(cuda_runtime)
    check_torch(training_run.layout)
    if training_config.first_trained_layer is not None and training_run.layout.dp < training_run.layout.world_size:
        raise InputError("--trainable-layers: not modelled in a layout that divides layers; expected --dp N alone")
    is_only_rank = training_run.layout.world_size == 1
    training_config = replace(training_config, pages_states=is_only_rank)
    rank_setup = RankSetup(spec, training_config, training_run.layout, rank, cuda_runtime.workspace_bytes)
    recorded_ranks = training_run.recorded_ranks(cuda_runtime)
    replay_result = replay_rank_on_allocator(
        rank_setup, cuda_runtime.has_expandable_segments, recorded_ranks, cuda_runtime.belongs_to_search
    )
    citation = "torch/distributed/pipelining/stage.py, nn/parallel/distributed.py, replayed"
    tensors_term = MemoryTerm("tensors", 0, "source", citation, TORCH_VERSION)
    if titan_settings(training_run.framework_settings).float8 is not None:
        from ..fsdp2.rank_memory import FLOAT8_STATUS

        tensors_term = FLOAT8_STATUS
    device_memory = summarize_memory(replay_result, cuda_runtime.context_bytes, layer_stacks(spec), tensors_term)
    return with_paged_states(device_memory, training_run.memory.states) if is_only_rank else device_memory
