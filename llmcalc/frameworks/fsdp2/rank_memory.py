"""The memory of one FSDP2 rank, and its collectives per step, by replaying its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...algebra import Number
from ...components.evidence import evidence_of_parts
from ...costs.trained_tensors import TrainedTensor
from ...device_memory.cuda_runtime import HOPPER_RUNTIME, CudaRuntime
from ...device_memory.device_memory import (
    TORCH_VERSION,
    CountedRun,
    DeviceMemory,
    MemoryTerm,
    summarize_memory,
    with_evidence,
)
from ...device_memory.estimate import is_recurrent
from ...device_memory.evidence import evidence_of_run
from ...device_memory.host_memory import pinned_bytes
from ...device_memory.optimizers.registry import optimizer
from ...device_memory.training import TrainingConfig
from ...errors import InputError
from ...evidence import STATUSES
from ...frozen import frozen
from ...model import ModelSpec
from ...ops import ParamTensor
from ...optional import TOWERS
from ...parallel.layout import Layout
from ...parallel.layout_request import version_date
from ...parallel.messages import Message
from ...parallel.placements import Collective
from ...parallel.rank_program import rank_program
from ...simulator.adapters import Adapters
from ...simulator.event_log import EventRecorder, RecordedEvents
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.layer_stacks import LayerStack, layer_stacks
from ...simulator.profiles.context_parallel import context_parallel_ring, sequence_tokens_of_rank
from ...simulator.repeat_layers import NotRepeatingError
from ...simulator.simulated_work import SIMULATED_WORK
from ..framework import RunOnRanks
from .evidence import evidence_for
from .lowering import ParamGroupKey
from .pipeline import NEWEST_SETTINGS, FsdpRankSetup, ScheduleSettings, schedule_settings_at, stage_device_memory
from .pipeline_replay import replay_stage
from .settings import titan_settings
from .training import (
    TORCHTITAN_FSDP_SETTINGS,
    FsdpRun,
    FsdpSettings,
    record_fsdp_run,
    sharding_of_rank,
    torchtitan_config_and_settings,
    torchtitan_date,
)
from .with_tensor_parallel import FsdpTensorParallelProfile

DEFAULT_STATUS = MemoryTerm("tensors", 0, "exact", "torch's FSDPMemTracker on a fake process group", TORCH_VERSION)
"""Verification status of a run without a pipeline, by default."""

PIPELINE_STATUS = MemoryTerm(
    "tensors", 0, "exact", "torch's PipelineStage under fully_shard on a fake process group", TORCH_VERSION
)
"""Verification status of a pipeline rank."""

FLOAT8_STATUS = MemoryTerm(
    "tensors", 0, "estimate", "torchao's products in float8, as those of bf16; their scratch is left out", TORCH_VERSION
)
"""Verification status of a run with float8 products."""

RING_ATTENTION_STATUS = MemoryTerm(
    "tensors",
    0,
    "source",
    "torch/distributed/tensor/experimental/_context_parallel and fsdp/_fully_shard",
    TORCH_VERSION,
)
"""Verification status of a run with context parallelism: attention was compared with torch, a whole model was not."""

FOUR_BIT_STATUS = MemoryTerm(
    "tensors",
    0,
    "source",
    "bitsandbytes/nn/modules.py, Params4bit, under fsdp/_fully_shard: codes sharded",
    TORCH_VERSION,
)
"""Verification status of a run whose frozen weights are in 4 bits."""

MODULES_TO_SAVE_STATUS = MemoryTerm(
    "tensors",
    0,
    "source",
    "peft/utils/other.py, ModulesToSaveWrapper, under fsdp/_fully_shard: both sharded",
    TORCH_VERSION,
)
"""Verification status of a run with trained copies of frozen modules."""

EXPERT_PARALLEL_STATUS = MemoryTerm(
    "tensors",
    0,
    "estimate",
    "torchtitan's all-to-all of rows and its groups of experts, with even routing",
    TORCH_VERSION,
)
"""Verification status of a run whose ranks divide the experts."""

OFFLOAD_STATUS = MemoryTerm(
    "tensors", 0, "source", "torch/distributed/fsdp/_fully_shard with CPUOffloadPolicy", TORCH_VERSION
)
"""Verification status of a run whose shards are on the host."""

TENSOR_PARALLEL_STATUS = MemoryTerm(
    "tensors", 0, "source", "torch/distributed/tensor and fsdp/_fully_shard", TORCH_VERSION
)
"""Verification status of a run with tensor parallelism that was not compared with FSDPMemTracker."""


def fsdp_memory(
    spec: ModelSpec,
    training_config: TrainingConfig,
    layout: Layout,
    rank: int = 0,
    cuda_runtime: CudaRuntime = HOPPER_RUNTIME,
    fsdp_settings: FsdpSettings = TORCHTITAN_FSDP_SETTINGS,
    tensors_term: MemoryTerm | None = None,
    schedule_settings: ScheduleSettings = NEWEST_SETTINGS,
    shared_results: dict[Any, Any] | None = None,
) -> DeviceMemory:
    """Returns the memory of one rank from a replay of its training. `training_config.dtype` is the compute format.

    tensors_term: status of its tensors; None (default) for the weakest status of the run's parts and optimizer.
    schedule_settings: how a pipeline's schedule runs. shared_results: results of other ranks of the same run, to
    which this adds; None (default) runs all micro-batches of a pipeline.
    Raises `UnsupportedKernel` for a step of the model without kernels, and `InputError` for a layout or training that
    FSDP2 is not modelled with.
    """
    check_context_parallelism(spec, layout)
    if tensors_term is None:
        evidence = evidence_of_run(
            spec, training_config.kernel_choices, training_config.optimizer, training_config.include
        )
        framework_evidence = evidence_for(layout, is_training=True).run(
            evidence_of_parts(spec, training_config.include), training_config.optimizer
        )
        tensors_term = with_evidence(
            DEFAULT_STATUS if layout.pp == 1 else PIPELINE_STATUS, [*framework_evidence, *evidence]
        )
    tensors_term = _weakest_tensors_term(layout, fsdp_settings, tensors_term, training_config.adapters)
    fsdp_rank_setup = FsdpRankSetup(
        spec, training_config, layout, rank, cuda_runtime.workspace_bytes, fsdp_settings, schedule_settings
    )
    if layout.pp > 1:
        if shared_results is not None:
            replay_result = replay_stage(fsdp_rank_setup, cuda_runtime.has_expandable_segments, shared_results)
            if replay_result is not None:
                return summarize_memory(replay_result, cuda_runtime.context_bytes, layer_stacks(spec), tensors_term)
        return stage_device_memory(fsdp_rank_setup, cuda_runtime, tensors_term)
    memory = counted_run_of_rank(fsdp_rank_setup, cuda_runtime, shared_results).memory(
        cuda_runtime.context_bytes, (), tensors_term
    )
    return replace(memory, host_terms=host_terms(fsdp_rank_setup)) if fsdp_settings.offloads_to_host else memory


def check_context_parallelism(spec: ModelSpec, layout: Layout) -> None:
    """Raises `InputError` for context parallelism of a model with recurrent states, which ranks would exchange."""
    if layout.cp > 1 and is_recurrent(spec):
        raise InputError(
            f"--cp {layout.cp}: torch exchanges keys and values, and no states of recurrences or convolutions; "
            "expected --cp 1"
        )


def counted_run_of_rank(
    fsdp_rank_setup: FsdpRankSetup, cuda_runtime: CudaRuntime, shared_results: dict[Any, Any] | None = None
) -> CountedRun:
    """Returns the counted memory of a rank without pipeline stages, shared by ranks that allocate the same.

    shared_results: as of `fsdp_memory`. Ranks whose recorded events are equal have one run, which is replayed on an
    allocator once. It is also recorded once where every rank has equally large parts of all tensors.
    """
    rank, cache_key = fsdp_rank_setup.rank, ("without a pipeline", cuda_runtime.has_expandable_segments)
    counted_ranks: dict[int, CountedRank]
    counted_ranks = {} if shared_results is None else shared_results.setdefault(cache_key, {})
    if rank not in counted_ranks:
        earlier_ranks = counted_ranks.values()
        cp_rank = fsdp_rank_setup.layout.coordinates(rank).cp
        equal_rank = next(
            (earlier_rank for earlier_rank in earlier_ranks if earlier_rank.ring_position == cp_rank), None
        )
        if equal_rank is None:
            new_counted_rank = _record_counted_rank(fsdp_rank_setup, cuda_runtime)
            same_event_ranks = (
                earlier_rank
                for earlier_rank in earlier_ranks
                if earlier_rank.recorded_events == new_counted_rank.recorded_events
            )
            equal_rank = next(same_event_ranks, new_counted_rank)
        else:
            SIMULATED_WORK.units += equal_rank.recording_units  # a search ends where it would with each rank recorded
        counted_ranks[rank] = equal_rank
    return counted_ranks[rank].counted_run


@frozen
class CountedRank:
    """The counted memory of a rank without pipeline stages, shared by ranks that allocate the same.

    counted_run: the counted tensors of the rank.
    recorded_events: the recorded events of the rank.
    ring_position: the ranks with this place in the ring of context parallelism record equal events; None if the
        events depend on another coordinate of the rank.
    recording_units: work of the recording, in units of `SimulatedWork`.
    """

    counted_run: CountedRun
    recorded_events: list[RecordedEvents]
    ring_position: int | None
    recording_units: int


def _record_counted_rank(fsdp_rank_setup: FsdpRankSetup, cuda_runtime: CudaRuntime) -> CountedRank:
    """Records the training of a rank without pipeline stages, and counts its tensors."""
    spec = fsdp_rank_setup.spec
    layout = fsdp_rank_setup.layout
    rank = fsdp_rank_setup.rank
    fsdp_settings = fsdp_rank_setup.fsdp_settings
    rank_sharding = sharding_of_rank(fsdp_rank_setup.training_config, layout, rank, fsdp_settings)
    effort_before = SIMULATED_WORK.units
    program = rank_program(spec, layout, rank) if layout.tp * layout.ep > 1 else None
    context_ring = context_parallel_ring(layout, rank)
    rank_training = replace(
        fsdp_rank_setup.training_config, seq=sequence_tokens_of_rank(layout, fsdp_rank_setup.training_config.seq)
    )

    run_arguments = spec, rank_training, rank_sharding, fsdp_settings, layout.reshard

    def record_few_layers(layers_per_stack: Mapping[int, int], workspace_bytes: int) -> Sequence[RecordedEvents]:
        """Records two steps with the given number of layers per stack, or with all layers."""
        if layers_per_stack and fsdp_settings.prefetched_layer_count > 1:
            raise NotRepeatingError(
                f"the first and last {fsdp_settings.prefetched_layer_count} layers gather others than those between"
            )

        def create_run(memory_meter: EventRecorder) -> FsdpRun:
            return FsdpRun(*run_arguments, layers_per_stack, workspace_bytes, memory_meter, program, context_ring)

        return [record_fsdp_run(create_run)]

    counted_run = CountedRun(spec, record_few_layers, cuda_runtime, fsdp_rank_setup.training_config.layer_period)
    has_equal_parts = program is None or program.divides_evenly
    is_equal_in_ring = has_equal_parts and not any(
        recorded_run.depends_on_shard for recorded_run in counted_run.recordings
    )
    cp_rank = layout.coordinates(rank).cp if is_equal_in_ring else None
    return CountedRank(counted_run, counted_run.recordings, cp_rank, SIMULATED_WORK.units - effort_before)


def host_terms(fsdp_rank_setup: FsdpRankSetup) -> tuple[MemoryTerm, ...]:
    """Returns the terms of a rank's host memory in bytes: pinned shards, gradients, optimizer states."""
    model_stacks = layer_stacks(fsdp_rank_setup.spec)
    optimizer_record = optimizer(fsdp_rank_setup.training_config.optimizer)
    weight_bytes = gradient_bytes = state_bytes = 0
    for group_key, parameter_group in _run_of_few_layers(fsdp_rank_setup).lowering.groups.items():
        represented_layers = _layer_count_represented_by(group_key, model_stacks)
        for parameter in parameter_group.parameters:
            shard_bytes = pinned_bytes(parameter.shard_elements * parameter.shard.dtype.bytes)
            weight_bytes += represented_layers * shard_bytes
            if not parameter.shard.is_leaf:
                continue
            gradient_bytes += represented_layers * shard_bytes
            shard_tensor = TrainedTensor(ParamTensor(parameter.shard.shape, "vector"), "optimizer", represented_layers)
            state_bytes += int(
                optimizer_record.state(
                    [shard_tensor], parameter.shard.dtype.name, fsdp_rank_setup.training_config.has_momentum
                ).bytes
            )
    citation = "torch/distributed/fsdp/_fully_shard with CPUOffloadPolicy, pinned"
    return (
        MemoryTerm("weights (pinned)", weight_bytes, "source", citation),
        MemoryTerm("gradients (pinned)", gradient_bytes, "source", citation),
        MemoryTerm("optimizer states", state_bytes, "source", "torch/optim on tensors of the host"),
    )


def rank_memory(training_run: RunOnRanks, rank: int, cuda_runtime: CudaRuntime) -> DeviceMemory:
    """Returns the memory of one rank, for torchtitan's version at the run's date.

    Raises `InputError` for another phase than training, and as `fsdp_memory` does.
    """
    memory_estimate, layout = training_run.memory, training_run.layout
    torchtitan_version, settings = version_date(training_run.version), titan_settings(training_run.framework_settings)
    training_config, fsdp_settings = _training_config_and_fsdp_settings(training_run, cuda_runtime)
    tensors_status = memory_estimate.tensors(training_config.kernel_choices.attention)
    tensors_term = None if tensors_status.status == "exact" else tensors_status
    schedule_settings = schedule_settings_at(torchtitan_date(torchtitan_version, settings), settings.schedules_per_step)
    return fsdp_memory(
        memory_estimate.spec,
        training_config,
        layout,
        rank,
        cuda_runtime,
        fsdp_settings,
        tensors_term,
        schedule_settings,
        training_run.recorded_ranks(cuda_runtime),
    )


def tensor_bytes(training_run: RunOnRanks, rank: int, cuda_runtime: CudaRuntime) -> int:
    """Returns a rank's tensor bytes at the peak; 0 for a pipeline stage, for which a replay is needed.

    Raises `InputError` as `rank_memory` does.
    """
    spec, layout = training_run.memory.spec, training_run.layout
    if layout.pp > 1:
        return 0
    check_context_parallelism(spec, layout)
    rank_training, fsdp_settings = _training_config_and_fsdp_settings(training_run, cuda_runtime)
    fsdp_rank_setup = FsdpRankSetup(spec, rank_training, layout, rank, cuda_runtime.workspace_bytes, fsdp_settings)
    return counted_run_of_rank(fsdp_rank_setup, cuda_runtime, training_run.recorded_ranks(cuda_runtime)).tensor_bytes


def _training_config_and_fsdp_settings(
    training_run: RunOnRanks, cuda_runtime: CudaRuntime
) -> tuple[TrainingConfig, FsdpSettings]:
    """Returns the training configuration and the FSDP settings of a run, as torchtitan has them at its date."""
    estimate = training_run.memory
    training_config = estimate.training(cuda_runtime)
    if TOWERS.name in estimate.states.parameter_count.include:
        raise InputError("FSDP2 with image and audio encoders is not modelled")
    torchtitan_version = version_date(training_run.version)
    settings = titan_settings(training_run.framework_settings, estimate.settings.precision)
    training_config, fsdp_settings = torchtitan_config_and_settings(
        estimate.spec, training_config, torchtitan_version, settings
    )
    return training_config, replace(fsdp_settings, prefetched_layer_count=training_run.layout.prefetch)


def _weakest_tensors_term(
    layout: Layout, fsdp_settings: FsdpSettings, tensors_term: MemoryTerm, adapters: Adapters | None
) -> MemoryTerm:
    """Returns the weakest verification status among the rank's tensors.

    tensors_term: status without float8, cp and tp. adapters: what is trained beside frozen weights; None if all is.
    """
    memory_terms = [tensors_term, OFFLOAD_STATUS] if fsdp_settings.offloads_to_host else [tensors_term]
    if layout.ep > 1:
        memory_terms.append(EXPERT_PARALLEL_STATUS)
    if fsdp_settings.float8 is not None:
        memory_terms.append(FLOAT8_STATUS)
    elif layout.cp > 1:
        memory_terms.append(RING_ATTENTION_STATUS)
    elif layout.tp > 1 and not layout.sequence_parallel:
        memory_terms.append(TENSOR_PARALLEL_STATUS)
    if adapters is not None and adapters.copied_modules:
        memory_terms.append(MODULES_TO_SAVE_STATUS)
    if adapters is not None and adapters.base_storage != "none":
        memory_terms.append(FOUR_BIT_STATUS)
    return max(reversed(memory_terms), key=lambda memory_term: STATUSES.index(memory_term.status))


def step_collectives_of_rank(
    spec: ModelSpec,
    training_config: TrainingConfig,
    layout: Layout,
    rank: int = 0,
    fsdp_settings: FsdpSettings = TORCHTITAN_FSDP_SETTINGS,
) -> list[Collective]:
    """Returns the collectives of a rank per step, in the order of the parameter groups.

    `times` is how often in the step; of equal layers there is one line, which names the first of them.
    Raises `InputError` as `fsdp_memory` does.
    """
    training_run = _run_of_few_layers(FsdpRankSetup(spec, training_config, layout, rank, fsdp_settings=fsdp_settings))
    reduction_count = training_config.microbatches if fsdp_settings.reduces_each_microbatch else 1
    model_stacks = layer_stacks(spec)
    collectives_by_key: dict[tuple[object, ...], Collective] = {}

    def add_collective(stack_path: str, collective: Collective, layer_count: int) -> None:
        """Adds a collective of a recorded layer, repeated for the layers that this layer represents."""
        collective_key = stack_path, *collective[1:6]
        first_collective = collectives_by_key.setdefault(collective_key, collective._replace(repetitions=0))
        repetitions = first_collective.repetitions + layer_count * collective.repetitions
        collectives_by_key[collective_key] = first_collective._replace(repetitions=repetitions)

    for group_key, parameter_group in training_run.lowering.groups.items():
        for collective in parameter_group.step_collectives(training_config.microbatches, reduction_count):
            add_collective(group_key.path, collective, _layer_count_represented_by(group_key, model_stacks))
    if isinstance(training_run.lowering, FsdpTensorParallelProfile):
        training_run.replace_batch()
        training_run.forward_and_backward()
        for allocation_place, collective in training_run.lowering.messages:
            stack_paths = (
                layer_stack.path
                for layer_stack in model_stacks
                if allocation_place.layer_index >= 0 and allocation_place.path.startswith(layer_stack.path)
            )
            group_key = ParamGroupKey(next(stack_paths, ""), allocation_place.layer_index)
            represented_layers = training_config.microbatches * _layer_count_represented_by(group_key, model_stacks)
            add_collective(group_key.path, collective, represented_layers)
    return list(collectives_by_key.values())


def messages_of_rank(training_run: RunOnRanks, rank: int) -> list[Message] | None:
    """Returns the collectives that a rank's replay sends; None for a layout whose messages are not replayed.

    Raises `InputError` as `rank_memory` does.
    """
    memory_estimate, layout = training_run.memory, training_run.layout
    if layout.dp * layout.tp != layout.world_size or layout.ep != 1:
        return None
    training_config, fsdp_settings = torchtitan_config_and_settings(
        memory_estimate.spec,
        memory_estimate.training(),
        version_date(training_run.version),
        titan_settings(training_run.framework_settings),
    )
    message_counts: dict[Message, Number] = {}
    for collective in step_collectives_of_rank(memory_estimate.spec, training_config, layout, rank, fsdp_settings):
        message = Message(collective.process_group, collective.ranks, collective.collective_kind, collective.bytes, 0)
        message_counts[message] = message_counts.get(message, 0) + collective.repetitions
    return [message._replace(count=message_count) for message, message_count in message_counts.items()]


def _run_of_few_layers(fsdp_rank_setup: FsdpRankSetup) -> FsdpRun:
    """Returns a run, after set-up, in which long stacks have only a few layers."""
    spec = fsdp_rank_setup.spec
    training_config = fsdp_rank_setup.training_config
    layout = fsdp_rank_setup.layout
    rank = fsdp_rank_setup.rank
    rank_flow = rank_program(spec, layout, rank) if layout.tp * layout.ep > 1 else None
    layers_per_stack = {
        i: layer_stack.repeats_of_layer_types(RECORDED_REPEATS)
        for i, layer_stack in enumerate(layer_stacks(spec))
        if layer_stack.repeat_count > RECORDED_REPEATS
    }
    fsdp_settings = fsdp_rank_setup.fsdp_settings
    rank_sharding = sharding_of_rank(training_config, layout, rank, fsdp_settings)
    training_run = FsdpRun(
        spec,
        training_config,
        rank_sharding,
        fsdp_settings,
        layout.reshard,
        layers_per_stack,
        memory_meter=EventRecorder(),
        program=rank_flow,
    )
    training_run.set_up()
    return training_run


def _layer_count_represented_by(group_key: ParamGroupKey, model_stacks: list[LayerStack]) -> int:
    """Returns how many layers of the model a layer of the shortened run stands for."""
    for stack in model_stacks:
        is_in_loop = (
            stack.layers_before + stack.layer_period
            <= group_key.layer_index
            < stack.layers_before + 2 * stack.layer_period
        )
        if group_key.path == stack.path and is_in_loop and stack.repeat_count > RECORDED_REPEATS:
            return 1 + stack.repeat_count - RECORDED_REPEATS
    return 1
