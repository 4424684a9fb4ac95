"""The memory of one rank as an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ...device_memory.cuda_runtime import CONTEXT, Runtime
from ...device_memory.device_memory import DeviceMemory, Term, summarize, without_garbage_collection
from ...model import ModelSpec
from ...simulator.caching_allocator import PrefixCache
from ...simulator.event_log import Recorder
from ...simulator.layer_loops import layer_stacks
from ...simulator.meter import Place
from ...simulator.repeat_layers import NotRepeating
from ...simulator.repeat_microbatches import EventMeter, PassCase, PassPlayer, PassTrace
from ...simulator.replay_result import PHASES, ReplayResult
from .kernel_choices import expandable
from .kernels import Parameter
from .record_passes import rehearsed
from .schedule import RankRun
from .settings import MegatronSettings

SOURCES = {
    "weights": "Megatron-LM, core/distributed/param_and_grad_buffer.py",
    "gradients": "Megatron-LM, core/distributed/param_and_grad_buffer.py; TransformerEngine, module/base.py",
    "optimizer": "Megatron-LM, core/optimizer/distrib_optimizer.py and optimizer.py",
    "activations": "Megatron-LM, core/transformer and core/tensor_parallel; TransformerEngine, module and attention",
    "temporary": "Megatron-LM, core/pipeline_parallel/schedules.py; TransformerEngine, module and attention",
    "communication": "Megatron-LM, core/utils.py, GlobalMemoryBuffer",
    "overhead": "TransformerEngine, cpp_extensions/gemm.py; aten/src/ATen/cuda/CublasHandlePool.cpp",
}
"""Kind of memory → where its tensors were read."""

NAMES = {"overhead": "workspaces and tables"}

REVISIONS = "Megatron-LM d98e8a64, TransformerEngine d0067d0d"


@dataclass(frozen=True)
class Known:
    """What is known of ranks that do the same.

    traces: what their passes do; None if passes that should be alike are not. below: the layers before each of the
    chunks of the rank that has been recorded. parameters: those of each chunk. openings: what ranks begin with.
    replayed: `rest_of` a run → what its steps find.
    """

    traces: Mapping[PassCase, PassTrace] | None
    below: Sequence[int]
    parameters: Sequence[list[Parameter]]
    prefix_cache: PrefixCache
    replayed: dict[tuple[object, ...], ReplayResult] = field(default_factory=dict, compare=False)


Shared: TypeAlias = dict[tuple[object, ...], Known]
"""What the passes of a rank depend on → what is known of it."""

FEW = {True: 3, False: 6}
"""Micro-batches of a step up to which all passes are run, since a rehearsal is no shorter; whether of a last rank.
"""


@without_garbage_collection()
def replay_rank(spec: ModelSpec, settings: MegatronSettings, rank: int, shared: Shared | None = None) -> ReplayResult:
    """Replays set-up and two steps of a rank. Raises `InputError`, naming the argument, for what is not modelled.

    shared: what is known of other ranks of the same run, to which this adds; None (default) for nothing.
    """
    run = RankRun(spec, settings, rank, meter := EventMeter())
    shared = {} if shared is None else shared
    alone = run.at.pp == run.layout.pp - 1
    key = *alike(run), alone
    if key not in shared and run.microbatches > FEW[alone]:
        shared[key] = known(spec, settings, rank, alone)
    found = shared.get(key)
    if found is None or found.traces is None:
        run.set_up()
        return two_steps(run, meter, PrefixCache(expandable(settings)))
    for chunk, parameters in zip(run.chunks, found.parameters, strict=True):
        chunk.parameters = parameters
    further = [chunk.lowering.below - below for chunk, below in zip(run.chunks, found.below, strict=True)]
    run.passes = PassPlayer(meter, found.traces, further)
    try:
        run.set_up()
        rest = rest_of(run, meter)
        if rest not in found.replayed:
            found.replayed[rest] = two_steps(run, meter, found.prefix_cache)
        return found.replayed[rest]
    except NotRepeating:
        run = RankRun(spec, settings, rank, meter := EventMeter())
        run.set_up()
        return two_steps(run, meter, PrefixCache(expandable(settings)))


def alike(run: RankRun) -> tuple[object, ...]:
    """What the passes of a rank depend on beside its settings."""
    names, at = run.spec.main.layer_names(), run.at._replace(dp=0, pp=0, edp=0)
    if run.spec.vocab_size % run.layout.tp == 0:  # every other axis is divided evenly
        at = at._replace(tp=0, etp=0, ep=0, cp=0)
    stages = [chunk.stage for chunk in run.chunks]
    kinds = (() if one is None else (one.first, one.last, *names[one.layers.start : one.layers.stop]) for one in stages)
    differ = [chunk.lowering.below for chunk in run.chunks] if any(run.rank_choices.wide_layers) else []
    return at, *kinds, *differ


def known(spec: ModelSpec, settings: MegatronSettings, rank: int, alone: bool) -> Known:
    """Rehearses a rank. alone: as of `rehearsed`."""
    run = RankRun(spec, settings, rank, meter := Recorder())
    below, prefix_cache = [chunk.lowering.below for chunk in run.chunks], PrefixCache(expandable(settings))
    try:
        traces = rehearsed(run, meter, alone)
    except NotRepeating:
        return Known(None, below, (), prefix_cache)
    return Known(traces, below, [chunk.parameters for chunk in run.chunks], prefix_cache)


def rest_of(run: RankRun, meter: EventMeter) -> tuple[object, ...]:
    """What the steps of a rank that has been set up depend on beside its passes, its settings and the layout."""
    meter.cut()
    ((steps, _),) = meter.pieces
    optimizer = run.sizes, run.states_of, run.gathered
    return run.at.pp, run.retains, tuple(steps), *map(tuple, optimizer)


def two_steps(run: RankRun, meter: EventMeter, prefix_cache: PrefixCache) -> ReplayResult:
    """What two steps of a rank that has been set up find."""
    run.step()
    meter.place = Place()
    meter.peaks = {}
    run.step()
    meter.place = Place("after")
    meter.cut()
    device = prefix_cache.played(meter.pieces, meter.count, meter.opening)
    found = ReplayResult(after=device.allocated, reserved=device.peak_reserved)
    found.peaks = {place: peak for place, peak in meter.peaks.items() if place.phase in PHASES}
    found.slop = device.peak_allocated - found.peak[1].bytes
    return found


def rank_memory(
    spec: ModelSpec, settings: MegatronSettings, rank: int, context: int = CONTEXT, shared: Shared | None = None
) -> DeviceMemory:
    """The memory of a rank of a run, numbered as `Layout.at` numbers it. context: bytes of the CUDA context.

    shared: as of `replay_rank`.
    """
    found = replay_rank(spec, settings, rank, shared)
    answer = summarize(found, Runtime(context=context), layer_stacks(spec), Term("tensors", 0, "source", ""))
    versions = REVISIONS if settings.date is None else f"Megatron-LM of {settings.date}"
    allocator = "c10/cuda/CUDACachingAllocator.cpp, replayed"
    tensors = (
        Term(NAMES.get(kind, kind), bytes, "source", SOURCES[kind], versions)
        for kind, bytes in found.peak[1].kinds.items()
        if kind in SOURCES
    )
    return replace(
        answer,
        terms=(
            *tensors,
            Term("rounding to blocks", found.slop, "source", allocator, of_runtime=True),
            Term("free blocks", answer.reserved_bytes - answer.peak_bytes, "estimate", allocator, of_runtime=True),
            Term("CUDA context", context, "estimate", "0.4 to 0.6 GiB by GPU and driver", of_runtime=True),
        ),
    )
