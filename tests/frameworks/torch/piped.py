"""A rank of a pipeline under torch's `fully_shard`: its schedule run by torch on a fake process group, and replayed.

Other ranks send nothing, so what comes from them has no values. Where torch asks them for shapes, it is told here.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B, schedules
from torch.distributed.pipelining._utils import InferenceMode
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor.parallel import loss_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from llmcalc.device_memory.training import TrainingConfig
from llmcalc.frameworks.fsdp2.pipeline import FsdpPipelineRun, FsdpRankSetup, ScheduleSettings
from llmcalc.frameworks.fsdp2.training import FsdpSettings
from llmcalc.model import ModelSpec
from llmcalc.parallel.layout import Layout, stages
from llmcalc.parallel.schedules import effective_schedule
from llmcalc.simulator.meter import Meter
from llmcalc.witnesses import kernel_variants
from llmcalc.witnesses.distributed.parallel import remove_other_stages
from llmcalc.witnesses.module_measurements import default_dtype
from llmcalc.witnesses.training_loop import build_optimizers, token_ids
from tests.frameworks.fsdp2.fully_sharded import STEP_COUNT, without_shared_fields
from tests.frameworks.fsdp2.two_dimensional import Parts, divide

STEPS = 2


class Stages(torch.nn.Module):
    """The stages of a rank."""

    def __init__(self, parts: list[torch.nn.Module]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)


@contextmanager
def mesh_of(layout: Layout, rank: int) -> Iterator[Any]:
    """The mesh of a fake process group, in torchtitan's order."""
    dist.init_process_group("fake", rank=rank, world_size=layout.world_size, store=FakeStore())
    try:
        sizes = layout.pp, layout.hsdp_replicas, layout.shard_count, layout.tp
        yield init_device_mesh("cpu", sizes, mesh_dim_names=("pp", "replicas", "shards", "tp"))
    finally:
        dist.destroy_process_group()
        _clear_sharding_prop_cache()


class Sent:
    """What is under way holds its tensors, as with gloo; in a fake process group it holds none."""

    def __init__(self, operations: Any) -> None:
        self.operations = operations

    def wait(self) -> None: ...


@contextmanager
def sending() -> Iterator[None]:
    """With what 1F1B sends under way until it sends the next."""
    before = schedules._batch_p2p
    schedules._batch_p2p = lambda operations, desc=None: [Sent(operations)] if desc else before(operations)
    try:
        yield
    finally:
        schedules._batch_p2p = before


def wrapped(
    spec: ModelSpec, training: TrainingConfig, layout: Layout, fsdp: FsdpSettings, mesh: Any, stage: Any
) -> Any:
    """The layers of one stage of the reference, wrapped."""
    with default_dtype(getattr(torch, fsdp.dtype)):
        model: Any = spec.reference()
    if layout.tp > 1:
        divide(model, mesh["tp"], fsdp.uses_loss_parallel)
    remove_other_stages(model, stage.layers, stage.has_embedding, stage.has_head)
    kernel_variants.apply_kernel_choices(model, training.kernel_choices, training.recompute)
    formats = MixedPrecisionPolicy(getattr(torch, training.dtype), getattr(torch, fsdp.reduction_format))
    shards = mesh["shards"] if layout.hsdp_replicas == 1 else mesh["replicas", "shards"]
    wrap = partial(fully_shard, mesh=shards, mp_policy=formats)
    for i, layer in enumerate(model.layers):
        last = fsdp.keeps_last_layer_gathered and i == len(model.layers) - 1
        wrap(layer, reshard_after_forward=layout.reshard and not last)
    if fsdp.outer_groups == "separate":
        if stage.has_embedding:
            wrap(model.embed_tokens, reshard_after_forward=layout.reshard)
        if stage.has_head:
            wrap([model.norm, model.lm_head], reshard_after_forward=False)
    wrap(model, reshard_after_forward=False)
    return model


def by_torch(
    spec: ModelSpec,
    training: TrainingConfig,
    layout: Layout,
    rank: int,
    fsdp: FsdpSettings,
    schedule_settings: ScheduleSettings,
) -> list[int]:
    """Bytes after set-up; then, of each step, the most of its passes, after them, the most of its update, and after."""
    with without_shared_fields(), mesh_of(layout, rank) as mesh:
        layers = sum(stack.num_hidden_layers for _, stack in spec.stacks())
        own_stages = [stage for stage in stages(layout, layers) if stage.pipeline_rank == layout.coordinates(rank).pp]
        parts = [wrapped(spec, training, layout, fsdp, mesh, stage) for stage in own_stages]
        updates = [
            next(
                iter(
                    build_optimizers(training.optimizer, [(one, False) for one in part.parameters()], "foreach", False)
                )
            )
            for part in parts
        ]
        schedule = _schedule(spec, training, layout, mesh, own_stages, parts)
        watch = Parts(Stages(parts), updates[0])  # type: ignore[no-untyped-call]
        divided = loss_parallel() if layout.tp > 1 else nullcontext()
        with warnings.catch_warnings(), watch, sending(), divided:
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
            return _steps(spec, training, schedule_settings, schedule, own_stages, parts, updates, watch)


def _steps(
    spec: ModelSpec,
    training: TrainingConfig,
    schedule_settings: ScheduleSettings,
    schedule: Any,
    own_stages: Any,
    parts: Any,
    updates: Any,
    watch: Any,
) -> list[int]:
    step_bytes = [watch.now]
    last, counts = own_stages[-1].has_head, 0
    for _ in range(STEPS):
        whole = token_ids(spec, training.batch * training.microbatches, training.seq, "cpu")
        watch.restart()
        stage_arguments = (whole,) if own_stages[0].has_embedding else ()
        losses: list[Any] = []
        schedule.step(
            *stage_arguments,
            target=whole if last else None,
            losses=losses,
            return_outputs=schedule_settings.returns_outputs,
        )
        del losses, stage_arguments
        step_bytes += [watch.peak - counts, watch.now - counts]
        watch.restart()
        for optimizer in updates:
            optimizer.step()
        counts = STEP_COUNT * sum("step" in state for optimizer in updates for state in optimizer.state.values())
        step_bytes.append(watch.peak - counts)
        for part in parts:
            part.zero_grad(set_to_none=True)
        step_bytes.append(watch.now - counts)
    return step_bytes


def _schedule(spec: ModelSpec, training: TrainingConfig, layout: Layout, mesh: Any, own_stages: Any, parts: Any) -> Any:
    group, count = mesh["pp"].get_group(), layout.pp * layout.vpp
    hidden = torch.empty(
        training.batch,
        training.seq // layout.tp,
        spec.hidden_size,
        dtype=getattr(torch, training.dtype),
        device="meta",
        requires_grad=True,
    )
    logits = torch.empty(
        training.batch, training.seq, spec.vocab_size, dtype=hidden.dtype, device="meta", requires_grad=True
    )
    ids = torch.empty(training.batch, training.seq, dtype=torch.int64, device="meta")

    def loss(out: Any, labels: Any) -> Any:
        return kernel_variants.loss_of(None, training.kernel_choices, out, labels)

    made = [
        PipelineStage(
            part,
            one.chunk_index * layout.pp + one.pipeline_rank,
            count,
            torch.device("cpu"),
            input_args=ids if one.has_embedding else hidden,
            output_args=logits if one.has_head else hidden,
            group=group,
        )
        for one, part in zip(own_stages, parts, strict=True)
    ]
    several = effective_schedule(layout) == "interleaved"
    schedule: Any
    if several:
        schedule = ScheduleInterleaved1F1B(made, training.microbatches, loss_fn=loss, scale_grads=False)
    else:
        schedule = Schedule1F1B(made[0], training.microbatches, loss_fn=loss, scale_grads=False)

    def no_vote(stages: Any, *_: Any) -> None:
        for one in stages:
            one._inference_mode = InferenceMode.STATIC

    schedule._warmup_p2p = no_vote
    return schedule


def replayed(
    spec: ModelSpec,
    training: TrainingConfig,
    layout: Layout,
    rank: int,
    fsdp: FsdpSettings,
    schedule_settings: ScheduleSettings,
) -> list[int]:
    """The same, replayed."""
    meter = Meter()
    run = FsdpPipelineRun(FsdpRankSetup(spec, training, layout, rank, 0, fsdp, schedule_settings), meter)
    for chunk in run.chunks:
        chunk.graph.adds_in_place = False  # as under every dispatch mode
    run.set_up()
    bytes_by_moment = [meter.live_bytes]
    for _ in range(STEPS):
        meter.restart()
        run.run_passes()
        bytes_by_moment += [meter.peak_bytes, meter.live_bytes]
        meter.restart()
        run.update()
        bytes_by_moment.append(meter.peak_bytes)
        run.zero_grad()
        bytes_by_moment.append(meter.live_bytes)
    return bytes_by_moment
