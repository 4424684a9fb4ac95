"""Training steps of one rank of a pipeline whose stages are wrapped by `fully_shard`, replayed.

Each of a rank's stages is a model of its own: with groups, streams and an optimizer of its own. Between the
micro-batches of a step nothing is summed over ranks: a schedule tells every stage to keep its whole parameters after
the backward pass, and to add up whole gradients. After the last micro-batch of a stage they are summed, group by group
from the first on.

Source: torch/distributed/pipelining of torch 2.13 (stage.py, `backward_maybe_with_nosync`, `perform_reduce_grad`;
schedules.py, `_add_unshard_reshard`, `_PipelineScheduleRuntime`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from ...device_memory.cuda_runtime import Runtime
from ...device_memory.device_memory import DeviceMemory, Term, summarize, without_garbage_collection
from ...device_memory.training import Training, replayed
from ...errors import InputError
from ...model import ModelSpec
from ...parallel.layout import Layout, Stage
from ...parallel.schedules import Action, schedule_of
from ...simulator.caching_allocator import CachingAllocator
from ...simulator.event_log import Event, RecordedEvents, Recorder
from ...simulator.layer_loops import LayerStack, layer_stacks, program_stacks
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.lowering import ENTRY
from ...simulator.meter import Device, Meter, Place
from ...simulator.profiles.context_parallel import part_of_sequence, ring_of
from ...simulator.repeat_layers import NotRepeating, RepeatAnalysis
from ...simulator.replay_result import PHASES, ReplayResult
from ...simulator.tensor import Tensor, empty
from ..torch.pipeline import Chunk, RankRun
from .lowering import Sharded
from .param_groups import ALL_REDUCE, Group, Sharding, Traffic
from .training import TITAN, Fsdp, arrange, sharding, why_not_split
from .with_tensor_parallel import ShardedAndDivided

ACTIVE = 3
"""Stages whose parameters are whole at the same time, at most (`max_active_stages`)."""


class ShardedChunk(Chunk):
    """The layers of one stage. streams: how many streams those of other stages have."""

    profiles = Sharded, ShardedAndDivided
    lowering: Sharded

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        layout: Layout,
        rank: int,
        stage: Stage,
        meter: Meter | Recorder,
        sharded: Sharding,
        fsdp: Fsdp,
        streams: int,
    ) -> None:
        super().__init__(spec, training, layout, rank, stage, meter)
        self.lowering.ring = ring_of(layout, rank)
        self.fsdp, self.reshard = fsdp, layout.reshard
        self.traffic = Traffic(self.graph, sharded, streams)
        self.stacks = [loop.path for loop in layer_stacks(spec)]
        if fsdp.splits and (why := why_not_split(spec, training)):
            raise InputError(f"FSDP2 with groups of their own for embedding and head: {why}")
        self.lowering.shard(self.traffic, self.stacks, fsdp.splits)
        self.gathers = False
        self.piped = NEWEST
        self.output_chunks: list[Tensor] = []
        self.keep_whole(True)

    def set_up(self) -> None:
        super().set_up()
        arrange(self.lowering.groups, self.stacks, self.fsdp, self.reshard)

    def _initialize_stage(self) -> None:
        if self.piped.infers_shapes:
            self._shape_inference()
        super()._initialize_stage()

    def _shape_inference(self) -> None:
        """A forward pass without a graph, of zeros where another stage sends what enters."""
        with self.graph.no_grad():
            self.next_batch()
            self.meter.place = Place("forward")
            args = self.lowering.enter(self.program)
            if args is not None:
                self.lowering.given[ENTRY] = args
            self.run_layers()
            self.lowering.given.pop(ENTRY, None)

    def clear_runtime_states(self) -> None:
        """What begins a schedule: outputs and gradients of the one before are freed."""
        self.output_chunks.clear()
        for buffer in self.received:
            buffer.grad = None

    def forward_one_chunk(self, i: int) -> Tensor:
        output = super().forward_one_chunk(i)
        if self.piped.returns and (self.stage.last or self.piped.keeps_outputs):
            self.output_chunks.append(output)
        return output

    def backward_one_chunk(self, i: int, loss: Tensor | None) -> Tensor | None:
        grads_input = super().backward_one_chunk(i, loss)
        if self.piped.keeps_gradients and grads_input is not None:
            self.received[i].grad = grads_input
        return grads_input

    def merge_outputs(self) -> None:
        """Joins the outputs of all micro-batches, which nobody takes."""
        if self.output_chunks and self.stage.last:
            shape, dtype = self.output_chunks[0].shape, self.output_chunks[0].dtype
            self.meter.place = Place("backward")
            empty(self.meter, (self.training.microbatches * shape[0], *shape[1:]), dtype)

    def finish_backward(self) -> None:
        self.meter.place = Place("backward")
        self.traffic.finish(list(self.lowering.groups.values()))

    def keep_whole(self, keeps: bool) -> None:
        """Says whether a backward pass leaves whole parameters and whole gradients (`backward_maybe_with_nosync`)."""
        self.traffic.reduces = self.traffic.reshards = self.traffic.ends = not keeps

    def groups(self, phase: str) -> Iterator[Group]:
        """The groups in their order, each at its place."""
        for layer, group in self.lowering.groups.items():
            self.meter.place = Place(phase) if layer.turn < 0 else Place(phase, layer.turn, layer.path)
            yield group
        self.meter.place = Place(phase)

    def unshard(self) -> None:
        """Begins to gather the parameters of all groups, on the default stream (`UNSHARD`)."""
        for group in self.groups("forward"):
            group.unshard(forward=False, stream=None)
        self.gathers = True

    def wait_for_unshard(self) -> None:
        """Copies what was gathered into whole parameters (`_assert_unsharded`)."""
        if self.gathers:
            for group in self.groups("forward"):
                group.wait_for_unshard(forward=False)
        self.gathers = False

    def reshard_all(self) -> None:
        """Frees all whole parameters (`RESHARD`)."""
        for group in self.groups("backward"):
            group.reshard()

    def perform_reduce_grad(self) -> None:
        """Sums the gradients of all micro-batches over ranks, and frees whole parameters."""
        self.keep_whole(False)
        for group in self.groups("backward"):
            group.post_backward()
        if self.piped.finishes:
            self.traffic.finish(list(self.lowering.groups.values()))
        self.keep_whole(True)


@dataclass(frozen=True)
class Piped:
    """How torchtitan runs a schedule.

    returns: whether `step` returns the outputs of the last stage, which keeps them and joins them in the end; false by
        default, as since 2025-10-22.
    gathers_ahead: whether a schedule of several stages gathers each before its first pass and frees it after its last
        one; true by default, as torch 2.13 does. Else the first pass of each group gathers it.
    schedules: how many times a step runs the schedule, each with an equal part of the micro-batches; 1 by default.
    keeps_outputs: whether all stages keep their outputs until the next schedule, if the last one does; false by
        default, as since 2025-05-13.
    keeps_gradients: whether the gradients of what a stage receives stay until the next schedule; false by default, as
        since 2025-10-01.
    finishes: whether a schedule ends the sums over ranks; true by default, as since 2025-01-10. Else the last of their
        buffers stays until there is another sum, in the next step.
    infers_shapes: whether each stage runs a forward pass on its device before the first step, to learn the shapes of
        what it sends; false by default, as since 2026-03-18.
    """

    returns: bool = False
    gathers_ahead: bool = True
    schedules: int = 1
    keeps_outputs: bool = False
    keeps_gradients: bool = False
    finishes: bool = True
    infers_shapes: bool = False


NEWEST = Piped()
"""As torchtitan has run schedules since `RETURNS_NOTHING`."""

RETURNS_NOTHING = date(2025, 10, 22)
"""Since when torchtitan asks a schedule for no outputs (e5ef99aab), with a torch of that time."""

FINISHES = date(2025, 1, 10)
"""Since when torch ends the sums over ranks after a schedule (pull request 144535)."""

LAST_OUTPUTS = date(2025, 5, 13)
"""Since when the last stage alone keeps its outputs (153383)."""

FREES_GRADIENTS = date(2025, 10, 1)
"""Since when gradients of what a stage receives are freed once they are sent (164329)."""

INFERS_ON_META = date(2026, 3, 18)
"""Since when stages learn shapes without memory (177728), as before 2024-09-28 they did not have to (136912)."""


def piped_at(version: date | None, schedules: int = 1) -> Piped:
    """How torchtitan of a date runs schedules, with a torch of that time; None for the newest.

    schedules: as of `Piped`.
    """

    def before(day: date) -> bool:
        return version is not None and version < day

    old = before(RETURNS_NOTHING)
    return Piped(
        returns=old,
        gathers_ahead=not old,
        schedules=schedules,
        keeps_outputs=before(LAST_OUTPUTS),
        keeps_gradients=before(FREES_GRADIENTS),
        finishes=not before(FINISHES),
        infers_shapes=before(INFERS_ON_META),
    )


class ShardedRank(RankRun):
    """One rank's training steps. Raises `InputError` as `sharding` does, and for other schedules."""

    chunks: list[ShardedChunk]  # type: ignore[assignment]

    def __init__(
        self,
        spec: ModelSpec,
        training: Training,
        layout: Layout,
        rank: int,
        meter: Meter | Recorder,
        workspace: int = 0,
        fsdp: Fsdp = TITAN,
        piped: Piped = NEWEST,
    ) -> None:
        self.sharding, self.fsdp = sharding(training, layout, rank, fsdp), fsdp
        self.schedules = piped.schedules
        each = training.microbatches // piped.schedules
        if schedule_of(layout) == "1f1b" and each < layout.pp:
            raise InputError(
                f"--num-microbatches: {each}; a pipeline of {layout.pp} stages takes at least {layout.pp} in torch"
            )
        training = replace(training, seq=part_of_sequence(layout, training.seq), microbatches=each)
        super().__init__(spec, training, layout, rank, meter, workspace)
        for chunk in self.chunks:
            chunk.piped = piped
        several = piped.gathers_ahead and schedule_of(layout) == "interleaved"
        self.active = list(_active(self.order, ACTIVE)) if several else []

    def check(self, layout: Layout) -> None:
        if layout.schedule not in ("1f1b", "interleaved"):
            raise InputError(
                f"--schedule {layout.schedule}: with FSDP2 it is not modelled; expected 1f1b or interleaved"
            )

    def chunk(self, spec: ModelSpec, rank: int, stage: Stage) -> ShardedChunk:
        streams = ALL_REDUCE * stage.chunk
        return ShardedChunk(
            spec, self.training, self.layout, rank, stage, self.meter, self.sharding, self.fsdp, streams
        )

    def set_up(self) -> None:
        for chunk in self.chunks:
            chunk.set_up()

    def passes(self) -> None:
        """Runs the schedule. From the second time on, gradients are there already."""
        for _ in range(min(self.schedules, 2)):
            self._run_schedule()

    def _run_schedule(self) -> None:
        for chunk in self.chunks:
            chunk.clear_runtime_states()
        super().passes()
        for chunk in self.chunks[: len(self.chunks) if self.active else 0]:
            chunk.reshard_all()
        for chunk in self.chunks:
            chunk.merge_outputs()

    def before_action(self, i: int) -> None:
        """Frees stages that no action follows for, and gathers those that come next."""
        if not self.active:
            return
        before, now = self.active[i - 1] if i else (), self.active[i]
        for index in before:
            if index not in now:
                self.chunks[index].reshard_all()
        for index in now:
            if index not in before:
                self.chunks[index].unshard()
        self.chunks[self.order[i][1]].wait_for_unshard()

    def update(self) -> None:
        """A step of the optimizer of every stage."""
        for chunk in self.chunks:
            chunk.update()


def _active(order: Sequence[Action], most: int) -> Iterator[tuple[int, ...]]:
    """For every action, the chunks whose parameters are whole: those of the next actions (`next_stage_indices`)."""
    found: list[tuple[int, ...]] = []
    after: tuple[int, ...] = ()
    for action in reversed(order):
        after = (action.chunk, *(one for one in after if one != action.chunk))
        found.append(after[:most])
    return reversed(found)


def replay_rank(
    spec: ModelSpec,
    training: Training,
    layout: Layout,
    rank: int,
    device: Device | None = None,
    workspace: int = 0,
    fsdp: Fsdp = TITAN,
    piped: Piped = NEWEST,
) -> ReplayResult:
    """Replays set-up and two steps of one rank. device: as of `replay`."""
    meter = Meter(device)
    return replayed(ShardedRank(spec, training, layout, rank, meter, workspace, fsdp, piped), meter)


def _recorded(run: ShardedRank, meter: Recorder) -> RecordedEvents:
    """Records set-up and two steps. What an optimizer frees is apart from the gradients that are freed after it."""
    run.set_up()
    set_up = meter.cut()
    steps: list[list[Sequence[Event]]] = []
    for _ in range(2):
        run.passes()
        passes = meter.cut()
        run.update()
        update = meter.cut()
        run.zero_grad()
        steps.append([passes, update, meter.cut()])
    first, then = steps
    return RecordedEvents(set_up, first, then, PHASES)


@without_garbage_collection()
def stage_memory(
    spec: ModelSpec,
    training: Training,
    layout: Layout,
    rank: int,
    runtime: Runtime,
    fsdp: Fsdp,
    tensors: Term,
    piped: Piped = NEWEST,
) -> DeviceMemory:
    """The memory of one rank. tensors: how its tensors are known. Raises `InputError` as `ShardedRank` does."""

    def unfolding(can_extrapolate: bool) -> RepeatAnalysis:
        """The events of two steps. folds: whether they are recorded with few of equal layers."""
        run = ShardedRank(spec, training, layout, rank, meter := Recorder(), runtime.workspace, fsdp, piped)
        stacks: list[LayerStack] = []
        grow: list[int] = []
        for chunk in run.chunks:
            own = program_stacks(chunk.program.root, training.recompute.every, chunk.lowering.below)
            few = {
                i: loop.kind_repeats(RECORDED_REPEATS)
                for i, loop in enumerate(own)
                if can_extrapolate and loop.repeats > RECORDED_REPEATS
            }
            chunk.lowering.run_only = few
            grow += [len(stacks) + i for i in few]
            stacks += own
        return RepeatAnalysis(_recorded(run, meter), stacks, grow)

    try:
        whole = unfolding(can_extrapolate=fsdp.prefetch <= 1)  # else the first and the last layers gather fewer
    except NotRepeating:
        whole = unfolding(can_extrapolate=False)
    found, taken = whole.counted({}), whole.overhead(CachingAllocator(runtime.expandable), {})
    found.slop, found.slop_after = taken.slop, taken.slop_after
    found.reserved = found.peak[1].bytes + taken.slop + taken.free
    return summarize(found, runtime, layer_stacks(spec), tensors)
