"""Replays the steps of one Megatron-LM rank, and returns the rank's memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from ...device_memory.cuda_runtime import CONTEXT_SOURCE, CudaRuntime
from ...device_memory.device_memory import DeviceMemory, MemoryTerm, summarize_memory, without_garbage_collection
from ...device_memory.host_memory import pinned_bytes
from ...frozen import frozen
from ...model import ModelSpec
from ...simulator.caching_allocator import replay_step_lists
from ...simulator.event_log import EventRecorder
from ...simulator.layer_stacks import layer_stacks
from ...simulator.meter import AllocationPlace
from ...simulator.pass_trace import PassGroup, PassTrace
from ...simulator.repeat_layers import NotRepeatingError
from ...simulator.repeat_microbatches import EventMeter, PassReplayer
from ...simulator.replay_result import STEP_PHASES, ReplayResult
from .kernel_choices import uses_expandable_segments
from .kernels import Parameter
from .rank_run import RankRun
from .record_chunks import record_chunks, repeating_stacks
from .record_passes import record_passes
from .schedule import run_step
from .settings import MegatronSettings

SOURCES_BY_MEMORY_KIND = {
    "weights": "Megatron-LM, core/distributed/param_and_grad_buffer.py",
    "gradients": "Megatron-LM, core/distributed/param_and_grad_buffer.py; TransformerEngine, module/base.py",
    "optimizer": "Megatron-LM, core/optimizer/distrib_optimizer.py and optimizer.py",
    "activations": "Megatron-LM, core/transformer and core/tensor_parallel; TransformerEngine, module and attention",
    "temporary": "Megatron-LM, core/pipeline_parallel/schedules.py; TransformerEngine, module and attention",
    "communication": "Megatron-LM, core/utils.py, GlobalMemoryBuffer",
    "overhead": "TransformerEngine, cpp_extensions/gemm.py; aten/src/ATen/cuda/CublasHandlePool.cpp",
}
"""Kind of memory → the source files of its tensors."""

TERM_NAMES = {"overhead": "workspaces and tables"}

MODELLED_REVISIONS = "Megatron-LM d98e8a64, TransformerEngine d0067d0d"


@frozen
class RecordedRank:
    """The recorded forward and backward passes of a rank, which ranks with identical passes reuse.

    pass_traces: events of each kind of pass; None if passes do not repeat.
    layers_before_by_chunk: per chunk, the layers before it in the recorded rank.
    parameters: per chunk, its parameters.
    distinguishes_previous_pass: whether the groups of passes have the kind of the chunk's previous pass.
    replay_results: `steps_cache_key` of a run → the result of its steps.
    """

    pass_traces: Mapping[PassGroup, PassTrace] | None
    layers_before_by_chunk: Sequence[int]
    parameters: Sequence[list[Parameter]]
    distinguishes_previous_pass: bool = False
    replay_results: dict[tuple[object, ...], ReplayResult] = field(default_factory=dict, compare=False)


RecordedRanks: TypeAlias = dict[tuple[object, ...], RecordedRank]
"""Result of `passes_cache_key` for a rank → the rank's recorded passes."""


MICROBATCHES_RUN_IN_FULL = 5
"""Most micro-batches for which all passes run, if passes differ by the previous pass: recording runs ten.

Of many equal layers recording runs four repeats, and takes less time at any number.
"""


@without_garbage_collection()
def replay_rank(
    spec: ModelSpec, settings: MegatronSettings, rank: int, recorded_ranks: RecordedRanks | None = None
) -> ReplayResult:
    """Replays a rank's set-up and two training steps. Raises `InputError` for an unmodelled argument.

    recorded_ranks: recorded passes of other ranks of the same run, to which this rank's are added; None (default) for
        none.
    """
    rank_run = RankRun(spec, settings, rank, memory_meter := EventMeter())
    recorded_ranks = {} if recorded_ranks is None else recorded_ranks
    is_last_stage = rank_run.coordinates.pp == rank_run.layout.pp - 1
    rank_passes_key = *passes_cache_key(rank_run), is_last_stage, uses_expandable_segments(settings)
    if settings.use_megatron_fsdp:
        rank_run.set_up()
        return replay_two_steps(rank_run, memory_meter)
    replays_all_passes = (
        _depends_on_previous_pass(settings)
        and rank_run.microbatches <= MICROBATCHES_RUN_IN_FULL
        and not any(repeating_stacks(rank_run, model_chunk) for model_chunk in rank_run.chunks)
    )
    if rank_passes_key not in recorded_ranks and not replays_all_passes:
        recorded_ranks[rank_passes_key] = record_rank(spec, settings, rank, is_last_stage)
    recorded_rank = recorded_ranks.get(rank_passes_key)
    if recorded_rank is None or recorded_rank.pass_traces is None:
        rank_run.set_up()
        return replay_two_steps(rank_run, memory_meter)
    for model_chunk, parameters in zip(rank_run.chunks, recorded_rank.parameters, strict=True):
        model_chunk.parameters = parameters
    layer_offsets = [
        model_chunk.lowering.first_layer_index - layers_before
        for model_chunk, layers_before in zip(rank_run.chunks, recorded_rank.layers_before_by_chunk, strict=True)
    ]
    rank_run.pass_recorder = PassReplayer(
        memory_meter, recorded_rank.pass_traces, layer_offsets, recorded_rank.distinguishes_previous_pass
    )
    try:
        rank_run.set_up()
        step_events_key = steps_cache_key(rank_run, memory_meter)
        if step_events_key not in recorded_rank.replay_results:
            recorded_rank.replay_results[step_events_key] = replay_two_steps(rank_run, memory_meter)
        return recorded_rank.replay_results[step_events_key]
    except NotRepeatingError:
        rank_run = RankRun(spec, settings, rank, memory_meter := EventMeter())
        rank_run.set_up()
        return replay_two_steps(rank_run, memory_meter)


def passes_cache_key(rank_run: RankRun) -> tuple[object, ...]:
    """Returns the cache key of a rank's recorded passes; ranks of a run with the same key have the same passes."""
    layer_names, rank_coordinates = rank_run.spec.main.layer_names(), rank_run.coordinates._replace(dp=0, pp=0, edp=0)
    if rank_run.spec.vocab_size % rank_run.layout.tp == 0:  # every other axis is divided evenly
        rank_coordinates = rank_coordinates._replace(tp=0, etp=0, ep=0, cp=0)
    chunk_stages = [model_chunk.stage for model_chunk in rank_run.chunks]
    stage_layers = (
        ()
        if stage is None
        else (stage.has_embedding, stage.has_head, *layer_names[stage.layers.start : stage.layers.stop])
        for stage in chunk_stages
    )
    if any(rank_run.rank_choices.bf16_layer_counts):
        first_layer_indices = [model_chunk.lowering.first_layer_index for model_chunk in rank_run.chunks]
    else:
        first_layer_indices = []
    return rank_coordinates, *stage_layers, *first_layer_indices


def _depends_on_previous_pass(settings: MegatronSettings) -> bool:
    """Whether a pass allocates differently after a forward than after a backward pass of its chunk.

    Dispatchers keep tensors of the pass before (`keep_in_dispatcher`).
    """
    recomputes_experts = (
        settings.recompute_mode == "full" or settings.moe_layer_recompute or "moe" in settings.recomputed_modules
    )
    return settings.num_experts is not None and recomputes_experts


def record_rank(spec: ModelSpec, settings: MegatronSettings, rank: int, is_last_stage: bool) -> RecordedRank:
    """Records the forward and backward passes of a rank. is_last_stage: as in `record_passes`."""
    distinguishes_previous_pass = _depends_on_previous_pass(settings)
    try:
        recorded_chunks = record_chunks(spec, settings, rank, is_last_stage, distinguishes_previous_pass)
        if recorded_chunks is not None:
            pass_traces, chunks = recorded_chunks
            first_layer_indices = [recorded_chunk.layers_before for recorded_chunk in chunks]
            return RecordedRank(
                pass_traces,
                first_layer_indices,
                [recorded_chunk.parameters for recorded_chunk in chunks],
                distinguishes_previous_pass,
            )
        rank_run = RankRun(spec, settings, rank, recorder := EventRecorder())
        rank_run.set_up()
        pass_traces = record_passes(rank_run, recorder, is_last_stage, distinguishes_previous_pass).traces()
    except NotRepeatingError:
        return RecordedRank(None, (), ())
    first_layer_indices = [recorded_chunk.lowering.first_layer_index for recorded_chunk in rank_run.chunks]
    return RecordedRank(
        pass_traces,
        first_layer_indices,
        [model_chunk.parameters for model_chunk in rank_run.chunks],
        distinguishes_previous_pass,
    )


def steps_cache_key(rank_run: RankRun, memory_meter: EventMeter) -> tuple[object, ...]:
    """Returns the cache key of a rank's two recorded training steps, which have a cache separate from the passes.

    Ranks with equal keys have equal allocations outside of the passes: between them, and in the optimizer's step.
    """
    memory_meter.end_event_list()
    ((step_events, _),) = memory_meter.step_lists
    optimizer = rank_run.updated_element_counts, rank_run.states_per_parameter, rank_run.step_gather_element_counts
    return rank_run.coordinates.pp, rank_run.retains_batches, tuple(step_events), *map(tuple, optimizer)


def replay_two_steps(rank_run: RankRun, memory_meter: EventMeter) -> ReplayResult:
    """Replays two training steps after the set-up, and returns the peak and the allocator's statistics."""
    run_step(rank_run)
    memory_meter.place = AllocationPlace()
    memory_meter.peaks = {}
    run_step(rank_run)
    memory_meter.place = AllocationPlace("after")
    memory_meter.end_event_list()
    is_expandable = uses_expandable_segments(rank_run.settings)
    device = replay_step_lists(memory_meter.step_lists, memory_meter.storage_count, is_expandable)
    replay_result = ReplayResult(final_bytes=device.allocated, reserved_bytes=device.peak_reserved)
    replay_result.peaks = {
        path: path_peak for path, path_peak in memory_meter.peaks.items() if path.phase in STEP_PHASES
    }
    replay_result.rounding_bytes = device.peak_allocated - replay_result.peak[1].bytes
    return replay_result


def rank_memory(
    spec: ModelSpec,
    settings: MegatronSettings,
    rank: int,
    context_bytes: int = CudaRuntime.context_bytes,
    recorded_ranks: RecordedRanks | None = None,
) -> DeviceMemory:
    """Returns the memory of a rank. context_bytes: bytes of the CUDA context. recorded_ranks: as in `replay_rank`.

    The rank is numbered as by `Layout.coordinates`.
    """
    replay_result = replay_rank(spec, settings, rank, recorded_ranks)
    rank_memory_use = summarize_memory(
        replay_result, context_bytes, layer_stacks(spec), MemoryTerm("tensors", 0, "source", "")
    )
    megatron_version = MODELLED_REVISIONS if settings.date is None else f"Megatron-LM of {settings.date}"
    allocator_source = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    tensors_term = (
        MemoryTerm(
            TERM_NAMES.get(memory_kind, memory_kind),
            kind_bytes,
            "source",
            SOURCES_BY_MEMORY_KIND[memory_kind],
            megatron_version,
        )
        for memory_kind, kind_bytes in replay_result.peak[1].bytes_of_all_kinds.items()
        if memory_kind in SOURCES_BY_MEMORY_KIND
    )
    return replace(
        rank_memory_use,
        host_terms=_host_terms(spec, settings, rank) if settings.optimizer_cpu_offload else (),
        terms=(
            *tensors_term,
            MemoryTerm(
                "rounding to blocks", replay_result.rounding_bytes, "source", allocator_source, belongs_to_runtime=True
            ),
            MemoryTerm(
                "free blocks",
                rank_memory_use.reserved_bytes - rank_memory_use.peak_bytes,
                "estimate",
                allocator_source,
                belongs_to_runtime=True,
            ),
            MemoryTerm("CUDA context", context_bytes, "estimate", CONTEXT_SOURCE, belongs_to_runtime=True),
        ),
    )


def _host_terms(spec: ModelSpec, settings: MegatronSettings, rank: int) -> tuple[MemoryTerm, ...]:
    """Returns the host memory of an optimizer step on the host: fp32 main weights, gradients, and two Adam states."""
    rank_run = RankRun(spec, settings, rank, EventMeter())
    rank_run.set_up()
    host_bytes = sum(pinned_bytes(4 * parameter_elements) for parameter_elements in rank_run.updated_element_counts)
    citation = "Megatron-LM, core/optimizer/cpu_offloading/hybrid_optimizer.py"
    return (
        MemoryTerm("main weights (pinned)", host_bytes, "source", citation),
        MemoryTerm("gradients (pinned)", host_bytes, "source", citation),
        MemoryTerm(
            "optimizer states", 8 * sum(rank_run.updated_element_counts), "source", "torch/optim on tensors of the host"
        ),
    )
