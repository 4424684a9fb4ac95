"""Replays training steps of a pipeline rank whose stages are sharded by `fully_shard`.

Each stage of a rank is a separate model with its own groups, streams and optimizer. Between the micro-batches of a step
no gradient is reduced over ranks: every stage keeps its whole parameters after the backward pass and accumulates whole
gradients. After the last micro-batch of a stage they are reduced, group by group from the first on.

Source: torch/distributed/pipelining of torch 2.13 (stage.py, `backward_maybe_with_nosync`, `perform_reduce_grad`;
schedules.py, `_add_unshard_reshard`, `_PipelineScheduleRuntime`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date

from ...device_memory.cuda_runtime import CudaRuntime
from ...device_memory.device_memory import DeviceMemory, MemoryTerm, summarize_memory, without_garbage_collection
from ...errors import InputError
from ...frozen import frozen
from ...parallel.layout import Layout, Stage
from ...parallel.schedules import PassAction, effective_schedule
from ...simulator.caching_allocator import CachingAllocator
from ...simulator.event_log import EventRecorder
from ...simulator.layer_stacks import layer_stacks
from ...simulator.lowering import STAGE_INPUT_KEY
from ...simulator.meter import AllocationPlace, Meter
from ...simulator.profiles.context_parallel import context_parallel_ring, sequence_tokens_of_rank
from ...simulator.repeat_layers import NotRepeatingError, RepeatAnalysis
from ...simulator.tensor import Tensor, empty
from ..torch.pipeline import ModelChunk, RankRun, RankSetup, record_two_steps, shorten_layers
from .lowering import FsdpProfile
from .param_groups import ALL_REDUCE_STREAM, CommunicationState, Parameter, ParamGroup
from .training import (
    TORCHTITAN_FSDP_SETTINGS,
    FsdpSettings,
    no_head_group_reason,
    set_resharding_and_prefetch,
    sharding_of_rank,
)
from .with_tensor_parallel import FsdpTensorParallelProfile

MAX_ACTIVE_STAGES = 3
"""Largest number of stages that have gathered parameters at the same time (`max_active_stages`)."""


@frozen
class ScheduleSettings:
    """The settings with which torchtitan runs a pipeline schedule.

    returns_outputs: whether `step` returns the concatenated outputs of the last stage; false by default, as since
        2025-10-22.
    gathers_stages_ahead: whether a schedule with several stages per rank gathers a stage before its first pass and
        frees it after its last pass; true by default, as in torch 2.13. Otherwise the first pass of each group gathers
        it.
    schedules_per_step: number of schedules per step, each with an equal part of the micro-batches; 1 by default.
    keeps_outputs: with `returns_outputs`, whether all stages keep their outputs until the next schedule; false by
        default, as since 2025-05-13.
    keeps_gradients: whether the gradients of received inputs stay until the next schedule; false by default, as since
        2025-10-01.
    ends_reductions: whether a schedule ends its reductions; true by default, as since 2025-01-10. Otherwise the last
        buffer stays until the first reduction of the next step.
    infers_shapes: whether each stage runs a forward pass before the first step to infer the shapes of its messages;
        false by default, as since 2026-03-18.
    """

    returns_outputs: bool = False
    gathers_stages_ahead: bool = True
    schedules_per_step: int = 1
    keeps_outputs: bool = False
    keeps_gradients: bool = False
    ends_reductions: bool = True
    infers_shapes: bool = False


NEWEST_SETTINGS = ScheduleSettings()
"""The settings of torchtitan since the date `NO_OUTPUTS_SINCE`."""


@frozen
class FsdpRankSetup(RankSetup):
    """The inputs of a rank's replay under `fully_shard`, with the settings of the pipeline schedule."""

    fsdp_settings: FsdpSettings = TORCHTITAN_FSDP_SETTINGS
    schedule_settings: ScheduleSettings = NEWEST_SETTINGS


class FsdpModelChunk(ModelChunk):
    """One of a rank's pipeline stages (chunks), sharded by `fully_shard`."""

    profiles = FsdpProfile, FsdpTensorParallelProfile
    lowering: FsdpProfile

    def __init__(
        self, fsdp_rank_setup: FsdpRankSetup, pipeline_stage: Stage, memory_meter: Meter | EventRecorder
    ) -> None:
        super().__init__(fsdp_rank_setup, pipeline_stage, memory_meter)
        self.lowering.ring = context_parallel_ring(fsdp_rank_setup.layout, fsdp_rank_setup.rank)
        self.fsdp_settings: FsdpSettings = fsdp_rank_setup.fsdp_settings
        self.reshard: bool = fsdp_rank_setup.layout.reshard
        stream_offset = ALL_REDUCE_STREAM * pipeline_stage.chunk_index
        rank_sharding = sharding_of_rank(
            fsdp_rank_setup.training_config, fsdp_rank_setup.layout, fsdp_rank_setup.rank, fsdp_rank_setup.fsdp_settings
        )
        self.communication_state: CommunicationState = CommunicationState(self.graph, rank_sharding, stream_offset)
        self.stack_paths: list[str] = [layer_stack.path for layer_stack in layer_stacks(fsdp_rank_setup.spec)]
        if fsdp_rank_setup.fsdp_settings.outer_group_keys and (
            refusal_reason := no_head_group_reason(fsdp_rank_setup.spec, fsdp_rank_setup.training_config)
        ):
            raise InputError(f"FSDP2 with groups of their own for embedding and head: {refusal_reason}")
        self.lowering.shard(self.communication_state, self.stack_paths, fsdp_rank_setup.fsdp_settings.outer_group_keys)
        self.gathers_parameters: bool = False
        self.schedule_settings = fsdp_rank_setup.schedule_settings
        self.output_chunks: list[Tensor] = []
        self.keep_unsharded(True)

    def gathered_parameters(self) -> list[Parameter]:
        """Returns the unsharded parameters of all groups."""
        return [
            parameter for parameter_group in self.lowering.groups.values() for parameter in parameter_group.parameters
        ]

    def set_up(self) -> None:
        """Allocates the shards of the stage's parameters."""
        super().set_up()
        set_resharding_and_prefetch(self.lowering.groups, self.stack_paths, self.fsdp_settings, self.reshard)

    def _initialize_stage(self) -> None:
        """Replays the start of a stage: the inference of shapes by a pass, if torch does one, and receive buffers."""
        if self.schedule_settings.infers_shapes:
            self._infer_shapes()
        super()._initialize_stage()

    def _infer_shapes(self) -> None:
        """Replays the pass that infers shapes: a forward pass without autograd, whose input is zeros."""
        with self.graph.no_grad():
            self.replace_batch()
            self.meter.place = AllocationPlace("forward")
            stage_inputs = self.lowering.create_stage_input(self.program)
            if stage_inputs is not None:
                self.lowering.inputs[STAGE_INPUT_KEY] = stage_inputs
            self.run_layers()
            self.lowering.inputs.pop(STAGE_INPUT_KEY, None)

    def clear_runtime_states(self) -> None:
        """Frees the outputs and gradients that the previous schedule left."""
        self.output_chunks.clear()
        for received_buffer in self.receive_buffers:
            received_buffer.grad = None

    def forward_one_chunk(self, i: int) -> Tensor:
        """Replays the forward pass of micro-batch `i`, and stores its output."""
        stage_output = super().forward_one_chunk(i)
        if self.schedule_settings.returns_outputs and (self.stage.has_head or self.schedule_settings.keeps_outputs):
            self.output_chunks.append(stage_output)
        return stage_output

    def backward_one_chunk(self, i: int, loss: Tensor | None) -> Tensor | None:
        """Replays the backward pass of micro-batch `i`; older torch versions do not free the sent gradient after it."""
        input_gradients = super().backward_one_chunk(i, loss)
        if self.schedule_settings.keeps_gradients and input_gradients is not None:
            self.receive_buffers[i].grad = input_gradients
        return input_gradients

    def merge_outputs(self) -> None:
        """Allocates the concatenation of all micro-batches' outputs, which torchtitan does not use."""
        if self.output_chunks and self.stage.has_head:
            output_shape, dtype = self.output_chunks[0].shape, self.output_chunks[0].dtype
            self.meter.place = AllocationPlace("backward")
            empty(self.meter, (self.training_config.microbatches * output_shape[0], *output_shape[1:]), dtype)

    def finish_communication(self) -> None:
        """Ends the communication of all FSDP groups after a backward pass."""
        self.meter.place = AllocationPlace("backward")
        self.communication_state.finish(list(self.lowering.groups.values()))

    def keep_unsharded(self, keeps_unsharded: bool) -> None:
        """Sets whether backward passes keep parameters and gradients unsharded (`backward_maybe_with_nosync`)."""
        self.communication_state.reduces_gradients = self.communication_state.reshards_after_backward = (
            self.communication_state.is_last_backward
        ) = not keeps_unsharded

    def groups(self, phase: str) -> Iterator[ParamGroup]:
        """Yields the FSDP groups in order; allocations until the next one are counted under the group's layer."""
        for group_key, parameter_group in self.lowering.groups.items():
            if group_key.layer_index < 0:
                self.meter.place = AllocationPlace(phase)
            else:
                self.meter.place = AllocationPlace(phase, group_key.layer_index, group_key.path)
            yield parameter_group
        self.meter.place = AllocationPlace(phase)

    def unshard(self) -> None:
        """Starts the all-gathers of all groups on the default stream (schedule action `UNSHARD`)."""
        for parameter_group in self.groups("forward"):
            parameter_group.unshard(is_forward=False, stream_number=None)
        self.gathers_parameters = True

    def wait_for_unshard(self) -> None:
        """Copies gathered shards into unsharded parameters (`_assert_unsharded`)."""
        if self.gathers_parameters:
            for parameter_group in self.groups("forward"):
                parameter_group.wait_for_unshard(is_forward=False)
        self.gathers_parameters = False

    def reshard_all(self) -> None:
        """Frees all unsharded parameters (schedule action `RESHARD`)."""
        for parameter_group in self.groups("backward"):
            parameter_group.reshard()

    def perform_reduce_grad(self) -> None:
        """Reduces the accumulated gradients over ranks, and frees unsharded parameters."""
        self.keep_unsharded(False)
        for parameter_group in self.groups("backward"):
            parameter_group.post_backward()
        if self.schedule_settings.ends_reductions:
            self.communication_state.finish(list(self.lowering.groups.values()))
        self.keep_unsharded(True)


NO_OUTPUTS_SINCE = date(2025, 10, 22)
"""Date since which torchtitan's pipeline schedules return no outputs (commit e5ef99aab)."""

ENDS_REDUCTIONS_SINCE = date(2025, 1, 10)
"""Date since which torch ends gradient reductions when a schedule ends (pull request 144535)."""

ONLY_LAST_OUTPUTS_SINCE = date(2025, 5, 13)
"""Date since which only the last pipeline stage keeps its outputs (pull request 153383)."""

FREES_GRADIENTS_SINCE = date(2025, 10, 1)
"""Date since which gradients of received inputs are freed once they have been sent (pull request 164329)."""

INFERS_ON_META_SINCE = date(2026, 3, 18)
"""Date since which stages infer shapes without memory (177728); before 2024-09-28 they inferred none (136912)."""


def schedule_settings_at(titan_date: date | None, schedule_count: int = 1) -> ScheduleSettings:
    """Returns the settings of pipeline schedules in torchtitan at a date; None means the newest torchtitan."""

    def is_before(change_date: date) -> bool:
        """Whether torchtitan's date is before a change."""
        return titan_date is not None and titan_date < change_date

    returns_outputs = is_before(NO_OUTPUTS_SINCE)
    return ScheduleSettings(
        returns_outputs=returns_outputs,
        gathers_stages_ahead=not returns_outputs,
        schedules_per_step=schedule_count,
        keeps_outputs=is_before(ONLY_LAST_OUTPUTS_SINCE),
        keeps_gradients=is_before(FREES_GRADIENTS_SINCE),
        ends_reductions=not is_before(ENDS_REDUCTIONS_SINCE),
        infers_shapes=is_before(INFERS_ON_META_SINCE),
    )


class FsdpPipelineRun(RankRun):
    """Replays a pipeline rank's training. Raises `InputError` for unsupported optimizers, layouts and schedules."""

    chunk_class = FsdpModelChunk
    chunks: list[FsdpModelChunk]  # type: ignore[assignment]

    def __init__(self, fsdp_rank_setup: FsdpRankSetup, memory_meter: Meter | EventRecorder) -> None:
        layout, schedule_settings = fsdp_rank_setup.layout, fsdp_rank_setup.schedule_settings
        self.schedule_count: int = schedule_settings.schedules_per_step
        microbatches = fsdp_rank_setup.training_config.microbatches // schedule_settings.schedules_per_step
        if effective_schedule(layout) == "1f1b" and microbatches < layout.pp:
            pp = layout.pp
            raise InputError(
                f"--num-microbatches: {microbatches}; a pipeline of {pp} stages takes at least {pp} in torch"
            )
        rank_tokens = sequence_tokens_of_rank(layout, fsdp_rank_setup.training_config.seq)
        rank_training = replace(fsdp_rank_setup.training_config, seq=rank_tokens, microbatches=microbatches)
        super().__init__(replace(fsdp_rank_setup, training_config=rank_training), memory_meter)
        gathers_stages = schedule_settings.gathers_stages_ahead and effective_schedule(layout) == "interleaved"
        self.active_chunks: list[tuple[int, ...]] = (
            list(_gathered_chunks_by_action(self.schedule_actions, MAX_ACTIVE_STAGES)) if gathers_stages else []
        )

    def check(self, layout: Layout) -> None:
        """Raises `InputError` for a layout that is not modelled."""
        if layout.schedule not in ("1f1b", "interleaved"):
            raise InputError(
                f"--schedule {layout.schedule}: with FSDP2 it is not modelled; expected 1f1b or interleaved"
            )

    def set_up(self) -> None:
        """Allocates the parameter shards of all the rank's stages."""
        for model_chunk in self.chunks:
            model_chunk.set_up()

    def run_passes(self) -> None:
        """Replays a step's first two runs of the schedule; the second one represents all later ones."""
        for _ in range(min(self.schedule_count, 2)):
            self._run_schedule()

    def _run_schedule(self) -> None:
        """Replays one run of the pipeline schedule with all its micro-batches."""
        for model_chunk in self.chunks:
            model_chunk.clear_runtime_states()
        super().run_passes()
        for model_chunk in self.chunks[: len(self.chunks) if self.active_chunks else 0]:
            model_chunk.reshard_all()
        for model_chunk in self.chunks:
            model_chunk.merge_outputs()

    def before_action(self, i: int) -> None:
        """Frees parameters of stages that action `i` and the next ones do not use, and gathers those they use."""
        if not self.active_chunks:
            return
        previous_chunks, active_chunks = self.active_chunks[i - 1] if i else (), self.active_chunks[i]
        for chunk_index in previous_chunks:
            if chunk_index not in active_chunks:
                self.chunks[chunk_index].reshard_all()
        for chunk_index in active_chunks:
            if chunk_index not in previous_chunks:
                self.chunks[chunk_index].unshard()
        self.chunks[self.schedule_actions[i][1]].wait_for_unshard()

    def update(self) -> None:
        """Replays the optimizer's step for every stage of the rank."""
        for model_chunk in self.chunks:
            model_chunk.update()


def _gathered_chunks_by_action(actions: Sequence[PassAction], max_gathered_chunks: int) -> Iterator[tuple[int, ...]]:
    """Yields, per action, the chunks whose parameters are gathered: the action's own and those of the next actions."""
    active_chunks: list[tuple[int, ...]] = []
    next_chunks: tuple[int, ...] = ()
    for schedule_action in reversed(actions):
        next_chunks = (
            schedule_action.chunk_index,
            *(chunk_index for chunk_index in next_chunks if chunk_index != schedule_action.chunk_index),
        )
        active_chunks.append(next_chunks[:max_gathered_chunks])
    return reversed(active_chunks)


@without_garbage_collection()
def stage_device_memory(
    fsdp_rank_setup: FsdpRankSetup, cuda_runtime: CudaRuntime, tensors_term: MemoryTerm
) -> DeviceMemory:
    """Returns the memory of a pipeline rank. tensors_term: the term with the status of its tensors."""

    def record_steps(shortens_loops: bool) -> RepeatAnalysis:
        """Records two training steps. shortens_loops: whether long sequences of equal layers run with fewer layers."""
        fsdp_run = FsdpPipelineRun(fsdp_rank_setup, memory_meter := EventRecorder())
        layer_period = fsdp_rank_setup.training_config.layer_period
        stacks, shortened_stacks = shorten_layers(fsdp_run.chunks, layer_period, shortens_loops)
        return RepeatAnalysis(record_two_steps(fsdp_run, memory_meter), stacks, shortened_stacks)

    try:  # with more than one layer of prefetch the first and the last layers gather fewer
        repeat_analysis = record_steps(shortens_loops=fsdp_rank_setup.fsdp_settings.prefetched_layer_count <= 1)
    except NotRepeatingError:
        repeat_analysis = record_steps(shortens_loops=False)
    replay_result = repeat_analysis.count_bytes({})
    block_overhead = repeat_analysis.allocator_overhead(CachingAllocator(cuda_runtime.has_expandable_segments), {})
    replay_result.rounding_bytes = block_overhead.rounding_bytes
    replay_result.rounding_bytes_after = block_overhead.rounding_bytes_after
    replay_result.reserved_bytes = (
        replay_result.peak[1].bytes + block_overhead.rounding_bytes + block_overhead.free_bytes
    )
    return summarize_memory(replay_result, cuda_runtime.context_bytes, layer_stacks(fsdp_rank_setup.spec), tensors_term)
