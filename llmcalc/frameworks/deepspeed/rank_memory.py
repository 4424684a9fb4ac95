"""The memory of one DeepSpeed rank, replayed on the caching allocator, with its verification status."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeAlias

from ...device_memory.cuda_runtime import CudaRuntime
from ...device_memory.device_memory import (
    TORCH_VERSION,
    DeviceMemory,
    MemoryTerm,
    summarize_memory,
    without_garbage_collection,
)
from ...device_memory.optimizers.registry import optimizer
from ...device_memory.training import CountedSteps, TrainingConfig, count_steps
from ...errors import InputError
from ...parallel.layout import Layout
from ...simulator.layer_stacks import layer_stacks
from ...simulator.meter import Meter
from ...simulator.repeat_microbatches import EventMeter
from ...simulator.replay_result import ReplayResult
from ...simulator.simulated_work import SIMULATED_WORK
from ...simulator.tensor import DTYPES, FLOAT32
from ..framework import RunOnRanks
from .bf16_optimizer import Bf16OptimizerRun
from .lamb import LambRun, OneBitLambRun
from .one_bit_adam import OneBitAdamRun
from .replicated import FlatCopyRun, ReplicatedRun
from .settings import LAMB, ONE_BIT_ADAM, ONE_BIT_LAMB, VERSION, ZERO_ONE_ADAM, DeepSpeedSettings
from .zero import ZeroRun, ZeroSetup, number_format
from .zero3 import Stage3Run
from .zero_stages_1_2 import PartitionedRun

MODELLED_VERSIONS = f"deepspeed {VERSION}, {TORCH_VERSION}"

FUSED_ADAM_TYPES = ("adam", "adamw", "fusedadam")
"""Types of `optimizer` for which DeepSpeed uses its fused Adam, unless `torch_adam` is set."""


def create_zero_run(zero_setup: ZeroSetup, memory_meter: Meter | None = None) -> ZeroRun:
    """Returns the object that replays a rank's training. Raises `InputError` for settings that are not modelled."""
    settings = zero_setup.settings.with_resolved_values(zero_setup.spec.hidden_size)
    settings.check()
    _check_training(zero_setup.training_config, settings)
    training_config = with_cast_adapters(zero_setup.training_config)
    implementation = training_config.implementation
    if settings.torch_adam and settings.optimizer.lower() in FUSED_ADAM_TYPES:
        implementation = "foreach"  # torch's own choice
    training_config = replace(training_config, gradient_dtype=None, state_dtype=None, implementation=implementation)
    run_type = _zero_run_class(training_config, settings)
    keeps_master_weights = run_type in (LambRun, OneBitLambRun, ReplicatedRun) and training_config.dtype != "float32"
    training_config = replace(training_config, has_master_weights=keeps_master_weights)
    return run_type(replace(zero_setup, training_config=training_config, settings=settings), memory_meter)


def _zero_run_class(training_config: TrainingConfig, settings: DeepSpeedSettings) -> type[ZeroRun]:
    """Returns the class that replays a rank's training, by ZeRO stage, number format and optimizer."""
    if runs_bf16_optimizer(training_config, settings):
        return Bf16OptimizerRun
    if settings.stage:
        return Stage3Run if settings.stage == 3 else PartitionedRun
    if training_config.dtype == "float32":
        return ReplicatedRun
    if settings.optimizer.lower() in (ONE_BIT_ADAM, ZERO_ONE_ADAM):
        return OneBitAdamRun
    if updates_flat_weight_copy(training_config, settings):
        return FlatCopyRun
    return {LAMB: LambRun, ONE_BIT_LAMB: OneBitLambRun}.get(settings.optimizer.lower(), ReplicatedRun)


def runs_bf16_optimizer(training_config: TrainingConfig, settings: DeepSpeedSettings) -> bool:
    """Whether DeepSpeed runs `BF16_Optimizer`: ZeRO stage 1, bf16 weights, gradients accumulated in fp32."""
    return (
        settings.stage == 1
        and training_config.dtype == "bfloat16"
        and settings.grad_accum_dtype in ("fp32", "float32")
        and settings.offload_optimizer == "none"
    )


def updates_flat_weight_copy(training_config: TrainingConfig, settings: DeepSpeedSettings) -> bool:
    """Whether DeepSpeed's fused Adam updates a flat copy of all weights: in stage 0 with 16-bit weights."""
    uses_deepspeed_adam = settings.optimizer.lower() in FUSED_ADAM_TYPES and not settings.torch_adam
    return settings.stage == 0 and training_config.dtype != "float32" and uses_deepspeed_adam


def with_cast_adapters(training_config: TrainingConfig) -> TrainingConfig:
    """Returns the training settings with adapters in the number format of the weights, as DeepSpeed casts them."""
    if training_config.adapters is None:
        return training_config
    return replace(training_config, adapters=replace(training_config.adapters, dtype=DTYPES[training_config.dtype]))


def _check_training(training_config: TrainingConfig, settings: DeepSpeedSettings) -> None:
    """Raises `InputError` for training that llmcalc does not model with DeepSpeed."""
    for is_modelled, option_text in (
        (training_config.autocast, "--precision autocast"),
        (training_config.kernel_choices.fake_quantization is not None, "--fake-quantize"),
        (training_config.first_trained_layer is not None, "--trainable-layers"),
        (training_config.kernel_choices.fused_adapters and settings.stage == 3, "--fused-adapters in ZeRO-3"),
        (training_config.keeps_gradients, "--zero-grad zeros"),
        (training_config.optimizer_in_backward, "--optimizer-in-backward"),
        (optimizer(training_config.optimizer).separates_layer_matrices, f"--optimizer {training_config.optimizer}"),
        (training_config.state_dtype not in (None, FLOAT32), "--optimizer-dtype"),
    ):
        if is_modelled:
            raise InputError(f"{option_text}: with DeepSpeed it is not modelled")
    accumulation_dtype = number_format(settings.grad_accum_dtype, DTYPES[training_config.dtype])
    if settings.stage == 0 and accumulation_dtype is not DTYPES[training_config.dtype]:
        raise InputError(
            f"grad_accum_dtype {settings.grad_accum_dtype}: DeepSpeed refuses it in stage 0 beside other weights; "
            f"expected {training_config.dtype}"
        )


ReplayedRank: TypeAlias = tuple[CountedSteps, tuple[MemoryTerm, ...]]
"""The counted steps of a rank, and the parts of its host memory."""


@without_garbage_collection()
def replay_zero(training_run: ZeroRun, memory_meter: EventMeter) -> ReplayedRank:
    """Replays one rank's set-up and two training steps; further steps would repeat the second one.

    memory_meter: the run's meter.
    """
    training_run.set_up()
    return count_steps(training_run, memory_meter), training_run.host_terms()


def _replay_on_allocator(
    zero_setup: ZeroSetup, cuda_runtime: CudaRuntime, stored_replays: dict[Any, Any]
) -> tuple[ReplayResult, tuple[MemoryTerm, ...]]:
    """Returns the result of replaying a rank's steps on an allocator, and the terms of the rank's host memory.

    stored_replays: the steps and results of the run's other ranks, to which this rank's are added. Ranks that are alike
        share their results; both kinds of allocators share the steps of a rank.
    """
    training_run = create_zero_run(zero_setup, memory_meter := EventMeter())
    rank_key = zero_setup.rank if training_run.has_rank_dependent_storages else None
    result_key = rank_key, cuda_runtime.has_expandable_segments
    if result_key in stored_replays:
        replay_result, host_memory, work_units = stored_replays[result_key]
        SIMULATED_WORK.units += work_units  # a search ends where it would with each rank replayed
        return replay_result, host_memory
    effort_before = SIMULATED_WORK.units
    replayed_rank: ReplayedRank | None = stored_replays.pop(rank_key, None)  # by the other kind of allocator
    if replayed_rank is None:
        replayed_rank = replay_zero(training_run, memory_meter)
        if not cuda_runtime.belongs_to_search:
            stored_replays[rank_key] = replayed_rank
    counted_steps, host_memory = replayed_rank
    replay_result = counted_steps.result_on_allocator(cuda_runtime.has_expandable_segments)
    stored_replays[result_key] = replay_result, host_memory, SIMULATED_WORK.units - effort_before
    return replay_result, host_memory


MAX_REPLAYED_LAYERS = 10_000
"""Largest number of layers that are replayed. Each layer is replayed, since partitions and buckets differ by layer."""


def rank_memory(training_run: RunOnRanks, rank: int, cuda_runtime: CudaRuntime) -> DeviceMemory:
    """Returns the memory of one rank. Raises `InputError` for a layout, settings or training not modelled."""
    memory_estimate, layout = training_run.memory, training_run.layout
    layer_count = memory_estimate.spec.layer_count
    if layer_count > MAX_REPLAYED_LAYERS:
        raise InputError(
            f"--framework deepspeed: {layer_count:,} layers are too many, each of which is replayed; expected at most "
            f"{MAX_REPLAYED_LAYERS:,}"
        )
    settings = settings_in_layout(layout, training_run.framework_settings, training_run.version)
    if memory_estimate.settings.optimizer_offload:  # ZeRO-HostOffload
        settings = replace(settings, offload_optimizer="cpu")
        memory_estimate = memory_estimate.with_changes(optimizer_offload=None)
    config = memory_estimate.training(cuda_runtime)
    if not config.has_master_weights and config.adapters is None and config.dtype != "float32":
        flag_text = "--master-weights none" if memory_estimate.settings.master_weights == "none" else "--precision bf16"
        raise InputError(f"{flag_text}: DeepSpeed's optimizer updates fp32 copies; expected fp32 master weights")
    spec, dp_rank = memory_estimate.spec, layout.coordinates(rank).dp
    zero_setup = ZeroSetup(spec, config, settings, layout.dp, dp_rank, cuda_runtime.workspace_bytes)
    stored_replays = training_run.recorded_ranks(cuda_runtime)
    replay_result, host_memory = _replay_on_allocator(zero_setup, cuda_runtime, stored_replays)
    tensors_status = zero_tensors_term(settings, config)
    return replace(
        summarize_memory(replay_result, cuda_runtime.context_bytes, layer_stacks(spec), tensors_status),
        host_terms=host_memory,
    )


def settings_in_layout(layout: Layout, file_settings: Any, deepspeed_version: str) -> DeepSpeedSettings:
    """Returns DeepSpeed's settings in a layout. Raises `InputError` for a layout or version not modelled."""
    settings = file_settings if isinstance(file_settings, DeepSpeedSettings) else DeepSpeedSettings()
    for parallel_dimension in ("tp", "pp", "cp", "ep", "hsdp_replicas"):
        if getattr(layout, parallel_dimension) > 1:
            option_text = f"--{parallel_dimension.replace('_', '-')} {getattr(layout, parallel_dimension)}"
            group_flag = " and no --zero-group" if parallel_dimension == "hsdp_replicas" else ""
            raise InputError(f"{option_text}: with DeepSpeed it is not modelled; expected 1{group_flag}")
    if layout.prefetch:
        raise InputError("--prefetch: DeepSpeed gathers by stage3_prefetch_bucket_size; expected it in a --launch file")
    requested_version = deepspeed_version or settings.version
    if requested_version not in ("", VERSION):
        raise InputError(f"--framework-version {requested_version}: not modelled with deepspeed; expected {VERSION}")
    if settings.stage is None or layout.zero:  # an option beside a file replaces the file's stage
        return replace(settings, stage=layout.zero)
    return settings


def zero_tensors_term(settings: DeepSpeedSettings, training_config: TrainingConfig) -> MemoryTerm:
    """Returns the term of the run's tensors, with the verification status from comparisons with real processes.

    Not replayed: on a GPU, a tensor that another stream reads is freed after that stream has read it.
    """
    witness_text = "deepspeed's own processes on the CPU: every storage"
    if settings.offload_optimizer != "none" or settings.offload_param != "none":
        witness_text = "deepspeed's own steps on meta, with the CPU as host: every storage"
    if settings.optimizer.lower() == LAMB and not settings.stage:
        return MemoryTerm("tensors", 0, "estimate", "deepspeed/runtime/fp16/unfused_optimizer.py", MODELLED_VERSIONS)
    if settings.optimizer.lower() in (ONE_BIT_ADAM, ZERO_ONE_ADAM, ONE_BIT_LAMB):
        citation = "deepspeed/runtime/fp16/onebit; buffers of the compression are left out"
        return MemoryTerm("tensors", 0, "estimate", citation, MODELLED_VERSIONS)
    if updates_flat_weight_copy(training_config, settings):  # it runs on a GPU alone
        return MemoryTerm("tensors", 0, "source", "deepspeed/runtime/fp16/fused_optimizer.py", MODELLED_VERSIONS)
    if settings.has_overlapped_reductions:
        return MemoryTerm(
            "tensors", 0, "source", f"{witness_text}; streams as in deepspeed/runtime/zero", MODELLED_VERSIONS
        )
    return MemoryTerm("tensors", 0, "exact", witness_text, MODELLED_VERSIONS)
