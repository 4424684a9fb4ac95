"""Records the passes of an FSDP2 pipeline rank with few micro-batches, and replays them as the full schedule.

A schedule gathers every stage's parameters once and accumulates whole gradients, so from the third micro-batch on all
passes with the same neighbours do the same. The first passes also allocate tensors that stay until the end of the
schedule: whole parameters and accumulated gradients. Any other difference raises `NotRepeatingError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from ...device_memory.device_memory import without_garbage_collection
from ...device_memory.training import replay_shorter_on_allocator, replay_steps_on_allocator
from ...simulator.event_log import Event, EventRecorder
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.layer_stacks import LayerStack
from ...simulator.meter import Block
from ...simulator.pass_trace import PassGroup, PassId, PassTrace
from ...simulator.record_microbatches import (
    PassCounter,
    PassRecorder,
    RecordedPass,
    TraceReader,
    output_without_storage,
)
from ...simulator.repeat_layers import NotRepeatingError
from ...simulator.repeat_microbatches import EventMeter, PassReplayer
from ...simulator.replay_result import ReplayResult
from ...simulator.tensor import Tensor
from ..torch.pipeline_replay import RecordedRank, micro_batches_on_allocator, passes_cache_key, run_in_groups
from .param_groups import GatheredStorage, Parameter
from .pipeline import FsdpModelChunk, FsdpPipelineRun, FsdpRankSetup
from .shortened_passes import ShortenedStagePasses, repeating_stacks

RECORDED_MICROBATCHES = 4
"""Number of micro-batches in a recorded schedule. With four, every repeating case is recorded twice."""

MICROBATCHES_RUN_IN_FULL = 6
"""Largest number of micro-batches per schedule for which all passes are run, because a recording is hardly shorter.

With several chunks per rank it is twice as many, because those are recorded twice.
"""

LAYERS_RECORDED_IN_FULL = 160
"""Largest number of layers per rank that are all recorded; of more layers, equal ones are repeated."""

RecordedRanks: TypeAlias = dict[tuple[object, ...], RecordedRank]
"""Cache: everything that the passes of a rank depend on → the recorded passes."""


class SchedulePassCounter(PassCounter):
    """Counts the passes of each chunk, and gives equal keys to passes with equal allocations.

    schedule_count: number of schedules that have begun.
    passes_before_schedule: per chunk, its forward passes before the current schedule.
    """

    def __init__(self, chunk_count: int) -> None:
        super().__init__(chunk_count)
        self.schedule_count: int = 0
        self.passes_before_schedule: list[int] = [0] * chunk_count

    def begin_step(self) -> None:
        """Begins the next run of the pipeline schedule."""
        self.schedule_count += 1
        self.passes_before_schedule = list(self.forwards)

    def _schedule_position(self, chunk_index: int, pass_number: int) -> int:
        """Returns a pass's class by its index in a run (0, 1, 2 or more), plus 3 after the step's first run."""
        return min(pass_number - self.passes_before_schedule[chunk_index], 2) + 3 * (self.schedule_count > 1)

    def _pass_group(self, chunk_index: int, pass_kind: str, pass_number: int) -> PassGroup:
        """Returns a key of a chunk's pass that is equal for passes that allocate and free the same memory."""
        previous_state = "flying" if self.backwards[chunk_index] < pass_number else "done"
        return (
            chunk_index,
            pass_kind,
            self._schedule_position(chunk_index, pass_number),
            previous_state if pass_number > self.passes_before_schedule[chunk_index] else "",
        )

    def next_backward(self, chunk_index: int) -> tuple[PassGroup, PassId]:
        """Counts a backward pass; returns its key (equal for passes with equal allocations) and its id."""
        pass_number = self.backwards[chunk_index]
        self.backwards[chunk_index] += 1
        next_state = "begun" if self.forwards[chunk_index] > pass_number + 1 else "alone"
        return (chunk_index, "B", self._schedule_position(chunk_index, pass_number), next_state), (
            chunk_index,
            "B",
            pass_number,
        )


class SchedulePassRecorder(SchedulePassCounter, PassRecorder):
    """Runs passes and records their allocations and frees. parameters: the gathered parameters of each chunk."""

    def __init__(self, memory_meter: EventRecorder, parameters: Sequence[Sequence[Parameter]]) -> None:
        PassRecorder.__init__(self, memory_meter, len(parameters))
        self.schedule_count: int = 0
        self.passes_before_schedule: list[int] = [0] * len(parameters)
        self.parameters: Sequence[Sequence[Parameter]] = parameters

    def _outputs_that_outlive_pass(self, chunk_index: int, stage_output: Tensor) -> list[tuple[int, Tensor, int]]:
        """Returns the tensors that outlive a pass: its output, and the parameters that it leaves gathered."""
        gathered_parameters = [
            output_without_storage(i, parameter.unsharded_param)
            for i, parameter in enumerate(self.parameters[chunk_index], 1)
            if isinstance(parameter.unsharded_param.storage, GatheredStorage)
            and parameter.unsharded_param.storage.block is not None
        ]
        return [*super()._outputs_that_outlive_pass(chunk_index, stage_output), *gathered_parameters]


class SchedulePassPlayer(SchedulePassCounter, PassReplayer):
    """Replays recorded passes instead of running them. parameters: the gathered parameters of each chunk."""

    def __init__(
        self,
        memory_meter: EventMeter,
        pass_traces: Mapping[PassGroup, PassTrace],
        layer_offsets: Sequence[int],
        parameters: Sequence[Sequence[Parameter]],
    ) -> None:
        PassReplayer.__init__(self, memory_meter, pass_traces, layer_offsets)
        self.schedule_count: int = 0
        self.passes_before_schedule: list[int] = [0] * len(layer_offsets)
        self.parameters: Sequence[Sequence[Parameter]] = parameters

    def _replay_forward(
        self, chunk_index: int, pass_group: PassGroup, pass_id: PassId, stage_input: Tensor | None
    ) -> Tensor:
        """Replays a forward pass, and gives gathered parameters the storages that it allocates."""
        pass_trace, first_storage = self._replay_pass(chunk_index, pass_group, pass_id)
        if stage_input is not None and pass_trace.kind_of_input_after_pass is not None:
            stage_input.storage.block.kind = pass_trace.kind_of_input_after_pass
        (_, stage_output), *gathered_outputs = pass_trace.outputs
        for i, gathered_output in gathered_outputs:
            storage = self.parameters[chunk_index][i - 1].unsharded_param.storage
            storage.block = Block(
                gathered_output.bytes, gathered_output.memory_kind, first_storage + gathered_output.storage_number
            )
        return stage_output.create_tensor(stage_output.create_storage(self.meter, first_storage))


class AccumulatedGradientLeaf:
    """Gives a parameter's accumulated gradient the interface of an autograd leaf, the attribute `grad`."""

    def __init__(self, parameter: Parameter) -> None:
        self.parameter = parameter

    @property
    def grad(self) -> Tensor | None:
        return self.parameter.accumulated_grad

    @grad.setter
    def grad(self, grad: Tensor | None) -> None:
        self.parameter.accumulated_grad = grad


class ReplayedChunk(FsdpModelChunk):
    """A pipeline stage whose passes are recorded, or replayed from a record."""

    def forward_one_chunk(self, i: int) -> Tensor:
        """Runs or replays the forward pass of micro-batch `i`."""
        stage_output = super().forward_one_chunk(i)
        for parameter_group in self.lowering.groups.values():
            parameter_group.is_unsharded = True  # also if the pass that gathered it was played
        return stage_output

    def _run_backward(self, stage_inputs: Sequence[Tensor], run_backward_pass: Callable[[], None]) -> None:
        """Runs or replays a backward pass, and gathers all gradients that it produces."""
        assert self.pass_recorder is not None
        gathered_parameters = self.gathered_parameters()
        accumulated_gradients: list[Any] = [AccumulatedGradientLeaf(parameter) for parameter in gathered_parameters]
        gradient_leaves = [
            *stage_inputs,
            *self.parameters,
            *accumulated_gradients,
            *(parameter.unsharded_param for parameter in gathered_parameters),
        ]
        self.pass_recorder.backward(self.chunk_index, gradient_leaves, run_backward_pass)


class ReplayedRank(FsdpPipelineRun):
    """A pipeline rank whose passes are recorded, or replayed from a record."""

    chunk_class = ReplayedChunk


@without_garbage_collection()
def replay_stage(
    fsdp_rank_setup: FsdpRankSetup, uses_expandable_segments: bool, recorded_ranks: RecordedRanks
) -> ReplayResult | None:
    """Replays a rank's set-up and two steps with many micro-batches on the caching allocator; None if it cannot.

    Returns None for a rank with few micro-batches or many layers, and if its passes do not repeat.

    uses_expandable_segments: whether the allocator has expandable segments.
    recorded_ranks: recorded passes of other ranks of the same run, to which this rank's are added.
    """
    layout, schedule_count = fsdp_rank_setup.layout, fsdp_rank_setup.schedule_settings.schedules_per_step
    microbatches_per_schedule = fsdp_rank_setup.training_config.microbatches // schedule_count
    if layout.reshard or microbatches_per_schedule <= MICROBATCHES_RUN_IN_FULL * (2 if layout.vpp > 1 else 1):
        return None
    replayed_rank = ReplayedRank(fsdp_rank_setup, memory_meter := EventMeter())
    if sum(len(model_chunk.stage.layers) for model_chunk in replayed_rank.chunks) > LAYERS_RECORDED_IN_FULL:
        return None
    replayed_rank.set_up()
    parameters_by_chunk = [model_chunk.gathered_parameters() for model_chunk in replayed_rank.chunks]
    shard_shapes = tuple(
        parameter.shard.shape for chunk_parameters in parameters_by_chunk for parameter in chunk_parameters
    )
    rank_coordinates = layout.coordinates(fsdp_rank_setup.rank)
    cache_key = (shard_shapes, rank_coordinates.cp, *passes_cache_key(replayed_rank))
    if cache_key not in recorded_ranks:
        recorded_ranks[cache_key] = record_stage_passes(fsdp_rank_setup, replayed_rank.chunks)
    recorded_rank = recorded_ranks[cache_key]
    if recorded_rank.pass_traces is None:
        return None
    steps_cache_key = rank_coordinates.pp, uses_expandable_segments
    if steps_cache_key in recorded_rank.replay_results:
        return recorded_rank.replay_results[steps_cache_key]
    microbatch_count = schedule_count * micro_batches_on_allocator(
        layout, replayed_rank.chunks, microbatches_per_schedule
    )
    try:
        _replay_recorded(replayed_rank, memory_meter, recorded_rank, recorded_rank.pass_traces)
        if microbatch_count == fsdp_rank_setup.training_config.microbatches:
            replay_result = replay_steps_on_allocator(replayed_rank, memory_meter, uses_expandable_segments)
        else:
            shorter_setup = replace(
                fsdp_rank_setup, training_config=replace(fsdp_rank_setup.training_config, microbatches=microbatch_count)
            )
            shorter_run = ReplayedRank(shorter_setup, shorter_meter := EventMeter())
            shorter_run.set_up()
            _replay_recorded(shorter_run, shorter_meter, recorded_rank, recorded_rank.pass_traces)
            replay_result = replay_shorter_on_allocator(
                (replayed_rank, memory_meter), (shorter_run, shorter_meter), uses_expandable_segments, microbatch_count
            )
    except NotRepeatingError:
        return None
    recorded_rank.replay_results[steps_cache_key] = replay_result
    return replay_result


def _replay_recorded(
    fsdp_run: FsdpPipelineRun,
    memory_meter: EventMeter,
    recorded_rank: RecordedRank,
    pass_traces: Mapping[PassGroup, PassTrace],
) -> None:
    """Makes a rank replay recorded passes instead of running them. pass_traces: recorded events per pass."""
    parameters_by_chunk = [model_chunk.gathered_parameters() for model_chunk in fsdp_run.chunks]
    replayed_passes = SchedulePassPlayer(
        memory_meter, pass_traces, recorded_rank.layer_offsets(fsdp_run.chunks), parameters_by_chunk
    )
    for model_chunk in fsdp_run.chunks:
        model_chunk.pass_recorder = replayed_passes


def record_stage_passes(fsdp_rank_setup: FsdpRankSetup, model_chunks: Sequence[FsdpModelChunk]) -> RecordedRank:
    """Records a pipeline rank's forward and backward passes. model_chunks: the rank's stages after set-up."""
    pass_traces: dict[PassGroup, PassTrace] | None = None
    first_layer_indices = [model_chunk.lowering.first_layer_index for model_chunk in model_chunks]
    stacks_by_chunk = [repeating_stacks(model_chunk) for model_chunk in model_chunks]
    is_shortened = (
        any(stacks_by_chunk) and model_chunks[0].fsdp_settings.prefetched_layer_count <= 1
    )  # else the first and the last layers gather fewer
    for stacks_to_shorten in ([stacks_by_chunk] if is_shortened else []) + [[[] for _ in model_chunks]]:
        try:
            pass_traces = _record_traces(fsdp_rank_setup, model_chunks, stacks_to_shorten)
            break
        except NotRepeatingError:
            continue
    return RecordedRank(pass_traces, first_layer_indices, ())


def _record_traces(
    fsdp_rank_setup: FsdpRankSetup,
    model_chunks: Sequence[FsdpModelChunk],
    stacks_by_chunk: Sequence[Sequence[LayerStack]],
) -> dict[PassGroup, PassTrace]:
    """Returns recorded allocations and frees by key of the pass. stacks_by_chunk: stacks that run with few layers."""
    pass_traces: dict[PassGroup, PassTrace] = {}
    # of one chunk some are always in flight
    for group_size in (RECORDED_MICROBATCHES, 2) if len(model_chunks) > 1 else (RECORDED_MICROBATCHES,):
        replayed_rank = ReplayedRank(fsdp_rank_setup, recorder := EventRecorder())
        for model_chunk, chunk_stacks in zip(replayed_rank.chunks, stacks_by_chunk, strict=True):
            model_chunk.lowering.run_repeats_by_stack = {
                i: layer_stack.repeats_of_layer_types(RECORDED_REPEATS) for i, layer_stack in enumerate(chunk_stacks)
            }
        recorded_passes = _record_passes(replayed_rank, recorder, group_size)
        recorded_events: Sequence[Event] = recorder.events
        if any(stacks_by_chunk):
            short_passes = ShortenedStagePasses(
                recorded_events, recorded_passes, replayed_rank.chunks, model_chunks, stacks_by_chunk
            )
            recorded_events, recorded_passes = short_passes.extended_passes()
        for pass_group, pass_trace in TraceReader(recorded_events, recorded_passes).traces.items():
            if pass_traces.setdefault(pass_group, pass_trace) != pass_trace:
                raise NotRepeatingError
    return pass_traces


def _record_passes(fsdp_run: FsdpPipelineRun, recorder: EventRecorder, group_size: int) -> list[RecordedPass]:
    """Runs two training steps and returns their recorded passes. group_size: as in `run_in_groups`."""
    fsdp_run.set_up()
    schedule_recorder = SchedulePassRecorder(recorder, [chunk.gathered_parameters() for chunk in fsdp_run.chunks])
    for chunk in fsdp_run.chunks:
        chunk.pass_recorder = schedule_recorder
    for _ in range(2):
        for _ in range(2 if fsdp_run.schedule_count > 1 else 1):
            _run_schedule(fsdp_run, group_size)
        fsdp_run.update()
        fsdp_run.zero_grad()
    return schedule_recorder.passes


def _run_schedule(fsdp_run: FsdpPipelineRun, group_size: int) -> None:
    """Runs a pipeline schedule in groups of a few micro-batches."""
    for model_chunk in fsdp_run.chunks:
        model_chunk.clear_runtime_states()
    fsdp_run.begin_step()
    for model_chunk in fsdp_run.chunks if fsdp_run.active_chunks else ():
        model_chunk.unshard()
        model_chunk.wait_for_unshard()
    run_in_groups(fsdp_run.chunks, RECORDED_MICROBATCHES, group_size)
    for model_chunk in fsdp_run.chunks:
        model_chunk.perform_reduce_grad()
    fsdp_run.end_passes()
    for model_chunk in fsdp_run.chunks if fsdp_run.active_chunks else ():
        model_chunk.reshard_all()
    for model_chunk in fsdp_run.chunks:
        model_chunk.merge_outputs()
