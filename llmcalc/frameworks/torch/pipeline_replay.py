"""A rank of torch's pipeline whose passes are recorded with few micro-batches, and played for those of the schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...device_memory.device_memory import without_garbage_collection
from ...device_memory.training import Training, replayed_on_allocator
from ...model import ModelSpec
from ...parallel.layout import Layout
from ...simulator.caching_allocator import PrefixCache
from ...simulator.event_log import Recorder
from ...simulator.lowering import Found
from ...simulator.repeat_layers import NotRepeating
from ...simulator.repeat_microbatches import EventMeter, PassCase, PassPlayer, PassRecorder, PassTrace
from ...simulator.replay_result import ReplayResult
from ...simulator.tensor import Tensor
from .pipeline import Flight, RankRun

STEPS = 3, 3
"""Micro-batches of each step of a rehearsal, so that every case but the first ones comes twice where it can."""

FEW = 6
"""Micro-batches of a step up to which all passes are run: a rehearsal is no shorter."""


@dataclass(frozen=True)
class Known:
    """What is known of ranks that do the same.

    traces: what their passes do; None if passes that should be alike are not. below: the layers before each of the
    chunks of the rank that has been recorded. parameters: of each chunk. openings: what ranks begin with.
    """

    traces: Mapping[PassCase, PassTrace] | None
    below: Sequence[int]
    parameters: Sequence[Found | None]
    prefix_cache: PrefixCache


Shared: TypeAlias = dict[tuple[object, ...], Known]
"""What the passes of a rank depend on → what is known of it."""


@without_garbage_collection()
def played_rank(
    spec: ModelSpec,
    training: Training,
    layout: Layout,
    rank: int,
    expandable: bool,
    workspace: int,
    shared: Shared,
) -> ReplayResult:
    """What `pipeline.replay_rank` finds on an allocator, in less time.

    expandable: whether the allocator has expandable segments. shared: what is known of other ranks of the same run, to
    which this adds.
    """

    def made(meter: Any) -> RankRun:
        return RankRun(spec, training, layout, rank, meter, workspace)

    run = made(meter := EventMeter())
    alone = layout.coordinates(rank).pp == layout.pp - 1
    key = alike(spec, run, rank, alone)
    if key not in shared and training.microbatches > FEW and not training.optimizer_in_backward:
        shared[key] = known(made(recorder := Recorder()), recorder, alone, expandable)
    found = shared.get(key)
    if found is not None and found.traces is not None:
        further = [chunk.lowering.below - below for chunk, below in zip(run.chunks, found.below, strict=True)]
        passes = PassPlayer(meter, found.traces, further)
        for chunk, parameters in zip(run.chunks, found.parameters, strict=True):
            chunk.passes, chunk.lowering.found = passes, parameters
        try:
            return replayed_on_allocator(run, meter, found.prefix_cache)
        except NotRepeating:
            run = made(meter := EventMeter())
    return replayed_on_allocator(run, meter, PrefixCache(expandable))


def alike(spec: ModelSpec, run: RankRun, rank: int, alone: bool) -> tuple[object, ...]:
    """What the passes of a rank depend on beside the training and the layout."""
    at, stacks = run.layout.coordinates(rank), [stack for _, stack in spec.stacks()]
    where = 0 if spec.vocab_size % run.layout.tp == 0 else at.tp  # every other axis is divided evenly
    if len(stacks) > 1:
        return rank, alone
    names = stacks[0].layer_names()
    stages = [chunk.stage for chunk in run.chunks]
    return where, alone, *((one.first, one.last, *names[one.layers.start : one.layers.stop]) for one in stages)


def known(run: RankRun, recorder: Recorder, alone: bool, expandable: bool) -> Known:
    """Rehearses a rank.

    alone: whether in its last chunk each micro-batch's backward pass comes before the next one's forward pass, as on
    the last rank of a pipeline. In other chunks several are in flight. expandable: as of `played_rank`.
    """
    passes = PassRecorder(recorder, len(run.chunks))
    for chunk in run.chunks:
        chunk.passes = passes
    below = [chunk.lowering.below for chunk in run.chunks]
    run.set_up()
    parameters, prefix_cache = [chunk.lowering.found for chunk in run.chunks], PrefixCache(expandable)
    for count in STEPS:
        run.begin_step()
        if run.layout.pp == 1:
            _without_a_pipeline(run, count)
        else:
            _in_a_pipeline(run, count, alone)
        run.end_passes()
        run.update()
        run.zero_grad()
    try:
        return Known(passes.traces(), below, parameters, prefix_cache)
    except NotRepeating:
        return Known(None, below, parameters, prefix_cache)


def _without_a_pipeline(run: RankRun, count: int) -> None:
    (chunk,) = run.chunks
    for _ in range(count):
        flight: Flight | None = chunk.forward_of()
        assert flight is not None
        chunk.backward_of(flight)
        flight = None


def _in_a_pipeline(run: RankRun, count: int, alone: bool) -> None:
    """All forward passes, chunk by chunk, then all backward passes."""
    losses: list[list[Tensor | None]] = [[] for _ in run.chunks]
    last = run.chunks[-1] if alone else None
    for chunk in run.chunks:
        for i in range(count):
            losses[chunk.number].append(chunk.forward_and_loss(i))
            if chunk is last:
                chunk.backward_one_chunk(i, losses[chunk.number][i])
    for chunk in reversed(run.chunks):
        for i in range(0 if chunk is last else count):
            chunk.backward_one_chunk(i, losses[chunk.number][i])
