"""Records the passes of a torch pipeline rank with few micro-batches, and replays them for the full schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TypeAlias

from ...device_memory.device_memory import without_garbage_collection
from ...device_memory.training import CountedSteps, count_steps, replay_shorter_on_allocator, replay_steps_on_allocator
from ...frozen import frozen
from ...parallel.layout import Layout
from ...simulator.event_log import Event, EventRecorder
from ...simulator.lowering import ParameterSet
from ...simulator.pass_trace import PassGroup, PassTrace
from ...simulator.record_microbatches import PassRecorder
from ...simulator.repeat_layers import FullRunEvents, NotRepeatingError, RepeatAnalysis
from ...simulator.repeat_microbatches import EventMeter, PassReplayer
from ...simulator.replay_result import ReplayResult
from ...simulator.tensor import DTYPES, Tensor
from .messages import bucket_sizes
from .pipeline import MicroBatchInFlight, ModelChunk, RankRun, RankSetup, record_two_steps, shorten_layers

RECORDED_MICROBATCHES = 3, 3
"""Number of micro-batches in each recorded step, which contains every case but the first ones twice."""

SMALL_GROUP = 2
"""Micro-batches per group in the second recording of a rank with several chunks, as with two stages."""

MICROBATCHES_RUN_IN_FULL = 6
"""Largest number of micro-batches per step for which all passes run, because a recording is not shorter."""


MAX_PASSES = 2560
"""Most layers times micro-batches, of up to three ranks, for which all passes are replayed on the allocator."""


@frozen
class RecordedRank:
    """The recorded forward and backward passes of a rank, which ranks with identical passes reuse.

    pass_traces: events of each kind of pass; None if passes do not repeat.
    layers_before_by_chunk: per chunk, the layers before it in the recorded rank.
    parameters: per chunk, its parameters.
    replay_results: stage of a rank with these passes, and whether segments are expandable → the result of its steps.
    counted_steps: stage of a rank whose passes were all run → its steps, until both kinds of allocators played them.
    """

    pass_traces: Mapping[PassGroup, PassTrace] | None
    layers_before_by_chunk: Sequence[int]
    parameters: Sequence[ParameterSet | None]
    replay_results: dict[tuple[int, bool], ReplayResult] = field(default_factory=dict, compare=False)
    counted_steps: dict[int, CountedSteps] = field(default_factory=dict, compare=False)

    def layer_offsets(self, model_chunks: Sequence[ModelChunk]) -> list[int]:
        """Returns, per chunk, how many layers later it begins than the recorded chunk."""
        chunk_pairs = zip(model_chunks, self.layers_before_by_chunk, strict=True)
        return [model_chunk.lowering.first_layer_index - layers_before for model_chunk, layers_before in chunk_pairs]


RecordedRanks: TypeAlias = dict[tuple[object, ...], RecordedRank]
"""Result of `passes_cache_key` for a rank → the rank's recorded passes."""


def micro_batches_on_allocator(layout: Layout, model_chunks: Sequence[ModelChunk], micro_batch_count: int) -> int:
    """Returns the number of micro-batches that a replay with the caching allocator runs.

    They are enough for the most that are in flight, twice, and those of interleaved stages keep the size of a group.
    """
    layer_count = sum(len(model_chunk.stage.layers) for model_chunk in model_chunks)
    replayed_microbatches = max(MAX_PASSES // (min(layout.pp, 3) * max(1, layer_count)), 2 * layout.pp * layout.vpp + 2)
    if layout.vpp > 1:
        if micro_batch_count % layout.pp:
            return micro_batch_count
        replayed_microbatches = -(-replayed_microbatches // layout.pp) * layout.pp
    return min(replayed_microbatches, micro_batch_count)


@without_garbage_collection()
def replay_rank_on_allocator(
    rank_setup: RankSetup,
    has_expandable_segments: bool,
    recorded_ranks: RecordedRanks,
    belongs_to_search: bool = False,
) -> ReplayResult:
    """Replays recorded passes of a rank on the caching allocator, which gives the same result as running all passes.

    has_expandable_segments: whether the allocator has expandable segments.
    recorded_ranks: recorded passes of other ranks of the same run, to which this rank's are added.
    belongs_to_search: as in `CudaRuntime`; then the steps are not stored for the other allocator.
    """
    stage_number = rank_setup.layout.coordinates(rank_setup.rank).pp
    cache_key = passes_cache_key(RankRun(rank_setup, EventMeter()))
    needs_autograd_node = (
        rank_setup.training_config.microbatches > MICROBATCHES_RUN_IN_FULL
        and not rank_setup.training_config.optimizer_in_backward
    )
    if cache_key not in recorded_ranks:
        recorded_ranks[cache_key] = record_rank(rank_setup) if needs_autograd_node else RecordedRank(None, (), ())
    recorded_rank = recorded_ranks[cache_key]
    if (stage_number, has_expandable_segments) not in recorded_rank.replay_results:
        stores_steps = rank_setup.layout.pp == 1 and not belongs_to_search
        recorded_rank.replay_results[stage_number, has_expandable_segments] = _replay_rank(
            rank_setup, has_expandable_segments, recorded_rank, stores_steps
        )
    return recorded_rank.replay_results[stage_number, has_expandable_segments]


def _replay_rank(
    rank_setup: RankSetup, has_expandable_segments: bool, recorded_rank: RecordedRank, stores_steps: bool
) -> ReplayResult:
    """Replays a rank from its recorded passes, or runs all passes if they do not repeat.

    stores_steps: whether steps of which all passes are run are stored, to be played on the other allocator.
    """
    stage_number = rank_setup.layout.coordinates(rank_setup.rank).pp
    if stage_number in recorded_rank.counted_steps:
        return recorded_rank.counted_steps.pop(stage_number).result_on_allocator(has_expandable_segments)
    rank_run = RankRun(rank_setup, memory_meter := EventMeter())
    if recorded_rank.pass_traces is not None:
        microbatch_count = rank_setup.training_config.microbatches
        replayed_microbatches = micro_batches_on_allocator(rank_setup.layout, rank_run.chunks, microbatch_count)
        try:
            _replay_recorded(rank_run, memory_meter, recorded_rank, recorded_rank.pass_traces)
            if replayed_microbatches == microbatch_count:
                return replay_steps_on_allocator(rank_run, memory_meter, has_expandable_segments)
            shorter_setup = replace(
                rank_setup, training_config=replace(rank_setup.training_config, microbatches=replayed_microbatches)
            )
            shorter_run = RankRun(shorter_setup, shorter_meter := EventMeter())
            _replay_recorded(shorter_run, shorter_meter, recorded_rank, recorded_rank.pass_traces)
            return replay_shorter_on_allocator(
                (rank_run, memory_meter), (shorter_run, shorter_meter), has_expandable_segments, replayed_microbatches
            )
        except NotRepeatingError:
            rank_run = RankRun(rank_setup, memory_meter := EventMeter())
    counted_steps = _count_steps_of_few_layers(rank_setup)
    if counted_steps is None:
        rank_run.set_up()
        counted_steps = count_steps(rank_run, memory_meter)
    if stores_steps:
        recorded_rank.counted_steps[stage_number] = counted_steps
    return counted_steps.result_on_allocator(has_expandable_segments)


def _count_steps_of_few_layers(rank_setup: RankSetup) -> CountedSteps | None:
    """Counts two training steps of all layers, from a run with four repeats of each chunk's layers.

    None if no chunk has more, if layers differ by their number, and if the repeats differ.
    """
    if rank_setup.training_config.first_trained_layer is not None:
        return None
    rank_run = RankRun(rank_setup, recorder := EventRecorder())
    stacks, shortened_stacks = shorten_layers(rank_run.chunks, rank_setup.training_config.layer_period)
    if not shortened_stacks:
        return None
    rank_run.has_buckets = False  # their sizes depend on the number of layers
    recorded_events = record_two_steps(rank_run, recorder)
    element_bytes = DTYPES[rank_setup.training_config.dtype].bytes
    gradient_bytes_by_storage = {
        weight.storage.block.handle: weight.numel * element_bytes
        for model_chunk in rank_run.chunks
        for weight in model_chunk.parameters
    }

    def bucket_events(full_run: FullRunEvents) -> list[Event]:
        if rank_setup.layout.dp == 1:
            return []
        full_run_gradient_bytes = {
            full_run_storage: gradient_bytes
            for storage_number, gradient_bytes in gradient_bytes_by_storage.items()
            for full_run_storage in full_run.numbers_in_full_run(storage_number)
        }
        set_up_events = full_run.events_of_full_run(recorded_events.set_up)
        ordered_gradient_bytes = [
            full_run_gradient_bytes[allocated_storage]
            for allocated_storage, nbytes, _ in set_up_events
            if nbytes >= 0 and allocated_storage in full_run_gradient_bytes
        ]
        return [
            (full_run.storage_count + i, bucket_bytes, "communication")
            for i, bucket_bytes in enumerate(bucket_sizes(reversed(ordered_gradient_bytes)))
        ]

    try:
        repeat_analysis = RepeatAnalysis(recorded_events, stacks, shortened_stacks)
        step_lists, storage_count, requested_bytes = repeat_analysis.allocator_steps(bucket_events)
        replay_result = repeat_analysis.count_bytes({}, bucket_events)
    except NotRepeatingError:
        return None
    return CountedSteps(
        replay_result, step_lists, storage_count, requested_bytes.requested, requested_bytes.peak_requested
    )


def _replay_recorded(
    rank_run: RankRun, memory_meter: EventMeter, recorded_rank: RecordedRank, pass_traces: Mapping[PassGroup, PassTrace]
) -> None:
    """Sets up a training run whose passes are replayed from recorded events. pass_traces: the recorded events."""
    pass_player = PassReplayer(memory_meter, pass_traces, recorded_rank.layer_offsets(rank_run.chunks))
    for model_chunk, parameters in zip(rank_run.chunks, recorded_rank.parameters, strict=True):
        model_chunk.pass_recorder, model_chunk.lowering.known_parameters = pass_player, parameters
    rank_run.set_up()


def passes_cache_key(rank_run: RankRun) -> tuple[object, ...]:
    """Returns the cache key of a rank's recorded passes; ranks of a run with the same key have the same passes."""
    spec, layout, rank = rank_run.rank_setup.spec, rank_run.layout, rank_run.rank_setup.rank
    coordinates, layer_stacks = layout.coordinates(rank), [layer_stack for _, layer_stack in spec.stacks()]
    is_last_stage = coordinates.pp == layout.pp - 1
    vocabulary_shard = 0 if spec.vocab_size % layout.tp == 0 else coordinates.tp  # every other axis is divided evenly
    if len(layer_stacks) > 1:
        return rank, is_last_stage
    layer_names = layer_stacks[0].layer_names()
    chunk_stages = [model_chunk.stage for model_chunk in rank_run.chunks]
    return (
        vocabulary_shard,
        is_last_stage,
        *(
            (stage.has_embedding, stage.has_head, *layer_names[stage.layers.start : stage.layers.stop])
            for stage in chunk_stages
        ),
    )


def record_rank(rank_setup: RankSetup) -> RecordedRank:
    """Records the forward and backward passes of a pipeline rank."""
    pass_traces: dict[PassGroup, PassTrace] = {}
    rank_run = RankRun(rank_setup, recorder := EventRecorder())
    first_layer_indices = [model_chunk.lowering.first_layer_index for model_chunk in rank_run.chunks]
    parameters = _record_steps(rank_run, recorder, pass_traces, RECORDED_MICROBATCHES[0])
    if parameters is not None and len(rank_run.chunks) > 1:  # of one chunk some are always in flight
        rank_run = RankRun(rank_setup, recorder := EventRecorder())
        if _record_steps(rank_run, recorder, pass_traces, SMALL_GROUP) is None:
            parameters = None
    return RecordedRank(None if parameters is None else pass_traces, first_layer_indices, parameters or ())


def _record_steps(
    rank_run: RankRun, recorder: EventRecorder, pass_traces: dict[PassGroup, PassTrace], group_size: int
) -> list[ParameterSet | None] | None:
    """Records the passes of two steps by case; returns each chunk's parameters, None if equal cases differ.

    group_size: micro-batches of a group in `run_in_groups`.
    """
    pass_recorder = PassRecorder(recorder, len(rank_run.chunks))
    for model_chunk in rank_run.chunks:
        model_chunk.pass_recorder = pass_recorder
    rank_run.set_up()
    parameters = [model_chunk.lowering.known_parameters for model_chunk in rank_run.chunks]
    for microbatch_count in RECORDED_MICROBATCHES:
        rank_run.begin_step()
        if rank_run.layout.pp == 1:
            _record_without_pipeline(rank_run, microbatch_count)
        else:
            run_in_groups(rank_run.chunks, microbatch_count, group_size)
        rank_run.end_passes()
        rank_run.update()
        rank_run.zero_grad()
    try:
        if any(
            pass_traces.setdefault(pass_group, pass_trace) != pass_trace
            for pass_group, pass_trace in pass_recorder.traces().items()
        ):
            return None
    except NotRepeatingError:
        return None
    return parameters


def _record_without_pipeline(rank_run: RankRun, microbatch_count: int) -> None:
    """Runs the forward and backward pass of each micro-batch in turn, on a single stage."""
    (single_chunk,) = rank_run.chunks
    for _ in range(microbatch_count):
        in_flight: MicroBatchInFlight | None = single_chunk.forward_micro_batch()
        assert in_flight is not None
        single_chunk.backward_micro_batch(in_flight)
        in_flight = None


def run_in_groups(model_chunks: Sequence[ModelChunk], microbatch_count: int, group_size: int) -> None:
    """Runs micro-batches in groups: a group's forward passes, chunk by chunk, then its backward passes.

    In the chunk with the loss each backward pass comes before the next forward pass, as on the last stage of a
    pipeline. In other chunks several micro-batches are in flight.
    """
    chunk_losses: list[list[Tensor | None]] = [[] for _ in model_chunks]
    last_chunk = model_chunks[-1] if model_chunks[-1].stage.has_head else None
    for first_microbatch in range(0, microbatch_count, group_size):
        group_microbatches = range(first_microbatch, min(first_microbatch + group_size, microbatch_count))
        for model_chunk in model_chunks:
            for microbatch in group_microbatches:
                chunk_losses[model_chunk.chunk_index].append(model_chunk.forward_and_loss(microbatch))
                if model_chunk is last_chunk:
                    model_chunk.backward_one_chunk(microbatch, chunk_losses[model_chunk.chunk_index][microbatch])
        for model_chunk in reversed(model_chunks):
            for microbatch in () if model_chunk is last_chunk else group_microbatches:
                model_chunk.backward_one_chunk(microbatch, chunk_losses[model_chunk.chunk_index][microbatch])
