"""The memory of one FSDP2 rank, and its collectives per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...algebra import Number
from ...components.evidence import evidence_of_parts
from ...costs.trained_tensors import TrainedTensor
from ...device_memory.cuda_runtime import HOPPER, Runtime
from ...device_memory.device_memory import TORCH, CountedRun, DeviceMemory, Term, summarize, with_evidence
from ...device_memory.estimate import is_recurrent
from ...device_memory.evidence import evidence_of_run
from ...device_memory.host import pinned_bytes
from ...device_memory.optimizers.registry import optimizer
from ...device_memory.training import Training
from ...errors import InputError
from ...evidence import STATUSES
from ...model import ModelSpec
from ...ops import ParamTensor
from ...optional import TOWERS
from ...parallel.layout import Layout
from ...parallel.layout_request import version_date
from ...parallel.messages import Message
from ...parallel.placements import Collective
from ...parallel.rank_program import rank_program
from ...simulator.event_log import RecordedEvents, Recorder
from ...simulator.layer_loops import LayerStack, layer_stacks
from ...simulator.layer_pattern import RECORDED_REPEATS
from ...simulator.profiles.context_parallel import part_of_sequence, ring_of
from ...simulator.repeat_layers import NotRepeating
from ..framework import RunOnRanks
from .evidence import evidence_for
from .lowering import Layer
from .pipeline import NEWEST, ScheduleSettings, schedule_settings_at, stage_memory
from .pipeline_replay import played_stage
from .settings import titan_settings
from .training import TITAN, Fsdp, FsdpRun, record, sharding, torchtitan_date, torchtitan_training
from .with_tensor_parallel import FsdpTensorParallelProfile

WITNESSED = Term("tensors", 0, "exact", "torch's FSDPMemTracker on a fake process group", TORCH)
"""Verification status of a run without a pipeline, by default."""

PIPED = Term("tensors", 0, "exact", "torch's PipelineStage under fully_shard on a fake process group", TORCH)
"""Verification status of a rank of a pipeline."""

IN_FLOAT8 = Term(
    "tensors", 0, "estimate", "torchao's products in float8, as those of bf16; their scratch is left out", TORCH
)
"""Verification status of a run with float8 products."""

IN_RINGS = Term(
    "tensors", 0, "source", "torch/distributed/tensor/experimental/_context_parallel and fsdp/_fully_shard", TORCH
)
"""Verification status of a run with context parallelism: attention was compared with torch, a whole model was not."""

IN_FOUR_BITS = Term(
    "tensors", 0, "source", "bitsandbytes/nn/modules.py, Params4bit, under fsdp/_fully_shard: codes sharded", TORCH
)
"""Verification status of a run whose frozen weights are in 4 bits."""

OFFLOADED = Term("tensors", 0, "source", "torch/distributed/fsdp/_fully_shard with CPUOffloadPolicy", TORCH)
"""Verification status of a run whose shards are on the host."""

DIVIDED = Term("tensors", 0, "source", "torch/distributed/tensor and fsdp/_fully_shard", TORCH)
"""Verification status of a run with tensor parallelism that was not compared with FSDPMemTracker."""


def fsdp_memory(
    spec: ModelSpec,
    training: Training,
    layout: Layout,
    rank: int = 0,
    runtime: Runtime = HOPPER,
    fsdp: Fsdp = TITAN,
    tensors: Term | None = None,
    schedule_settings: ScheduleSettings = NEWEST,
    shared: dict[Any, Any] | None = None,
) -> DeviceMemory:
    """Returns the memory of one rank from a replay of its training. `training.dtype` is the compute format.

    tensors: status of its tensors; None (default) for the weakest status of the run's parts and optimizer.
    schedule_settings: how the schedule of a pipeline is run. shared: what is known of other ranks of the same run, to
    which this adds; None (default) runs all micro-batches of a pipeline.
    Raises `Unsupported` for a step of the model without kernels, and `InputError` for a layout or training that FSDP2
    is not modelled with.
    """
    check_context_parallelism(spec, layout)
    if tensors is None:
        evidence = evidence_of_run(spec, training.choices, training.optimizer, training.include)
        framework_evidence = evidence_for(layout, trains=True).run(
            evidence_of_parts(spec, training.include), training.optimizer
        )
        tensors = with_evidence(WITNESSED if layout.pp == 1 else PIPED, [*framework_evidence, *evidence])
    tensors = _weakest_status(layout, fsdp, tensors, training.adapters is not None and training.adapters.base != "none")
    if layout.pp > 1:
        replay_result = None
        if shared is not None:
            expandable, workspace = runtime.expandable, runtime.workspace
            replay_result = played_stage(
                spec, training, layout, rank, expandable, workspace, fsdp, schedule_settings, shared
            )
        if replay_result is not None:
            return summarize(replay_result, runtime, layer_stacks(spec), tensors)
        return stage_memory(spec, training, layout, rank, runtime, fsdp, tensors, schedule_settings)
    memory = counted_rank(spec, training, layout, rank, runtime, fsdp, shared).memory((), tensors)
    return replace(memory, host=host_terms(spec, training, layout, rank, fsdp)) if fsdp.offloads else memory


def check_context_parallelism(spec: ModelSpec, layout: Layout) -> None:
    """Raises `InputError` for context parallelism of a model with states that ranks would exchange."""
    if layout.cp > 1 and is_recurrent(spec):
        raise InputError(
            f"--cp {layout.cp}: torch exchanges keys and values, and no states of recurrences or convolutions; "
            "expected --cp 1"
        )


def counted_rank(
    spec: ModelSpec,
    training: Training,
    layout: Layout,
    rank: int,
    runtime: Runtime,
    fsdp: Fsdp,
    shared: dict[Any, Any] | None = None,
) -> CountedRun:
    """Returns the run of a rank without a pipeline, whose tensors are counted. Arguments are those of `fsdp_memory`.

    Ranks whose recorded events are equal have one run, which is replayed on an allocator once.
    """
    runs: dict[int, tuple[list[RecordedEvents], CountedRun]]
    runs = {} if shared is None else shared.setdefault(("without a pipeline", runtime.expandable), {})
    if rank not in runs:
        counted = _count_rank(spec, training, layout, rank, runtime, fsdp)
        recordings = counted.recordings
        runs[rank] = next((known for known in runs.values() if known[0] == recordings), (recordings, counted))
    return runs[rank][1]


def _count_rank(
    spec: ModelSpec, training: Training, layout: Layout, rank: int, runtime: Runtime, fsdp: Fsdp
) -> CountedRun:
    """Records a rank without a pipeline, and counts its tensors. Arguments are those of `fsdp_memory`."""
    rank_sharding = sharding(training, layout, rank, fsdp)
    program = rank_program(spec, layout, rank) if layout.tp > 1 else None
    ring, rank_training = ring_of(layout, rank), replace(training, seq=part_of_sequence(layout, training.seq))

    def run(layers: Mapping[int, int], workspace: int) -> Sequence[RecordedEvents]:
        """Creates a run with a number of layers."""
        if layers and fsdp.prefetch > 1:
            raise NotRepeating(f"the first and last {fsdp.prefetch} layers gather others than those between")
        return [record(spec, rank_training, rank_sharding, fsdp, layout.reshard, layers, workspace, program, ring)]

    return CountedRun(spec, run, runtime, training.recompute.every)


def host_terms(spec: ModelSpec, training: Training, layout: Layout, rank: int, fsdp: Fsdp) -> tuple[Term, ...]:
    """Returns the named parts of a rank's host memory, in bytes: pinned shards and gradients, and optimizer states."""
    stacks, record = layer_stacks(spec), optimizer(training.optimizer)
    weights = gradients = states = 0
    for layer, group in _run_of_few_layers(spec, training, layout, rank, fsdp).lowering.groups.items():
        represented_layers = _represented_layers(layer, stacks)
        for parameter in group.parameters:
            size = pinned_bytes(parameter.shard_elements * parameter.shard.dtype.bytes)
            weights += represented_layers * size
            if not parameter.shard.leaf:
                continue
            gradients += represented_layers * size
            shard = TrainedTensor(ParamTensor(parameter.shard.shape, "vector"), "optimizer", represented_layers)
            states += int(record.state([shard], parameter.shard.dtype.name, training.momentum).bytes)
    source = "torch/distributed/fsdp/_fully_shard with CPUOffloadPolicy, pinned"
    return (
        Term("weights (pinned)", weights, "source", source),
        Term("gradients (pinned)", gradients, "source", source),
        Term("optimizer states", states, "source", "torch/optim on tensors of the host"),
    )


def rank_memory(run: RunOnRanks, rank: int, runtime: Runtime) -> DeviceMemory:
    """Returns the memory of one rank under torchtitan at the run's date.

    Raises `InputError` for another phase than training, and as `fsdp_memory` does.
    """
    memory, layout = run.memory, run.layout
    version, settings = version_date(run.version), titan_settings(run.own_settings)
    training, fsdp = _training_on(run, runtime)
    status = memory.tensors(training.choices.attention)
    tensors = None if status.status == "exact" else status
    schedule_settings = schedule_settings_at(torchtitan_date(version, settings), settings.schedules)
    return fsdp_memory(
        memory.spec, training, layout, rank, runtime, fsdp, tensors, schedule_settings, run.recorded_ranks(runtime)
    )


def tensor_bytes(run: RunOnRanks, rank: int, runtime: Runtime) -> int:
    """Returns the bytes of tensors of a rank at its peak; 0 for a stage of a pipeline, which only its replay tells.

    Raises `InputError` as `rank_memory` does.
    """
    spec, layout = run.memory.spec, run.layout
    if layout.pp > 1:
        return 0
    check_context_parallelism(spec, layout)
    training, fsdp = _training_on(run, runtime)
    return counted_rank(spec, training, layout, rank, runtime, fsdp, run.recorded_ranks(runtime)).tensor_bytes


def _training_on(run: RunOnRanks, runtime: Runtime) -> tuple[Training, Fsdp]:
    """Returns the training of a run under torchtitan at the run's date, and its sharding."""
    memory = run.memory
    training = memory.training(runtime)
    if TOWERS.name in memory.states.count.include:
        raise InputError("FSDP2 with image and audio encoders is not modelled")
    version, settings = version_date(run.version), titan_settings(run.own_settings)
    training, fsdp = torchtitan_training(memory.spec, training, version, settings)
    return training, replace(fsdp, prefetch=run.layout.prefetch)


def _weakest_status(layout: Layout, fsdp: Fsdp, tensors: Term, has_codes: bool) -> Term:
    """Returns the weakest verification status of any tensor.

    tensors: status without float8, cp and tp. has_codes: whether frozen weights are in 4 bits.
    """
    terms = [tensors, OFFLOADED] if fsdp.offloads else [tensors]
    if fsdp.float8 is not None:
        terms.append(IN_FLOAT8)
    elif layout.cp > 1:
        terms.append(IN_RINGS)
    elif layout.tp > 1 and not layout.sequence_parallel:
        terms.append(DIVIDED)
    if has_codes:
        terms.append(IN_FOUR_BITS)
    return max(reversed(terms), key=lambda term: STATUSES.index(term.status))


def communication(
    spec: ModelSpec, training: Training, layout: Layout, rank: int = 0, fsdp: Fsdp = TITAN
) -> list[Collective]:
    """Returns the collectives of a rank per step, in the order of the parameter groups.

    `times` is how often in the step; of equal layers there is one line, which names the first of them.
    Raises `InputError` as `fsdp_memory` does.
    """
    run = _run_of_few_layers(spec, training, layout, rank, fsdp)
    reductions = training.microbatches if fsdp.reduces_each else 1
    stacks = layer_stacks(spec)
    collectives: dict[tuple[object, ...], Collective] = {}
    for layer, group in run.lowering.groups.items():
        represented_layers = _represented_layers(layer, stacks)
        for collective in group.step_collectives(training.microbatches, reductions):
            key = layer.path, *collective[1:6]
            previous_collective = collectives.get(key)
            collectives[key] = (
                collective._replace(times=represented_layers * collective.times)
                if previous_collective is None
                else _with_repetitions(previous_collective, collective, represented_layers)
            )
    if isinstance(run.lowering, FsdpTensorParallelProfile):
        run.next_batch()
        run.forward_and_backward()
        for node_place, collective in run.lowering.messages:
            path = next(
                (loop.path for loop in stacks if node_place.layer_index >= 0 and node_place.path.startswith(loop.path)),
                "",
            )
            represented_layers = training.microbatches * _represented_layers(
                Layer(path, node_place.layer_index), stacks
            )
            previous_collective = collectives.get((path, *collective[1:6]))
            collectives[path, *collective[1:6]] = (
                collective._replace(times=represented_layers)
                if previous_collective is None
                else _with_repetitions(previous_collective, collective, represented_layers)
            )
    return list(collectives.values())


def own_messages(run: RunOnRanks, rank: int) -> list[Message] | None:
    """Returns the collective messages in a rank's replay; None for layouts whose replay has none.

    Raises `InputError` as `rank_memory` does.
    """
    memory, layout = run.memory, run.layout
    if layout.dp * layout.tp != layout.world or layout.ep != 1:
        return None
    training, fsdp = torchtitan_training(
        memory.spec, memory.training(), version_date(run.version), titan_settings(run.own_settings)
    )
    counts: dict[Message, Number] = {}
    for collective in communication(memory.spec, training, layout, rank, fsdp):
        message = Message(collective.group, collective.ranks, collective.kind, collective.bytes, 0)
        counts[message] = counts.get(message, 0) + collective.times
    return [message._replace(count=count) for message, count in counts.items()]


def _with_repetitions(previous_collective: Collective, collective: Collective, repetitions: int) -> Collective:
    """Returns a collective with the repetitions of an equal one added."""
    return previous_collective._replace(times=previous_collective.times + repetitions * collective.times)


def _run_of_few_layers(spec: ModelSpec, training: Training, layout: Layout, rank: int, fsdp: Fsdp) -> FsdpRun:
    """Creates a run, after set-up, with a few layers of each long stack."""
    program = rank_program(spec, layout, rank) if layout.tp > 1 else None
    layers = {
        i: loop.kind_repeats(RECORDED_REPEATS)
        for i, loop in enumerate(layer_stacks(spec))
        if loop.repeats > RECORDED_REPEATS
    }
    run = FsdpRun(
        spec, training, sharding(training, layout, rank, fsdp), fsdp, layout.reshard, layers, 0, Recorder(), program
    )
    run.set_up()
    return run


def _represented_layers(layer: Layer, stacks: list[LayerStack]) -> int:
    """Returns the number of layers of the model that one layer of `_run_of_few_layers` represents."""
    for loop in stacks:
        is_in_loop = loop.before + loop.period <= layer.layer_index < loop.before + 2 * loop.period
        if layer.path == loop.path and is_in_loop and loop.repeats > RECORDED_REPEATS:
            return 1 + loop.repeats - RECORDED_REPEATS
    return 1
