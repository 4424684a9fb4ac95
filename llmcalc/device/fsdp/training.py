"""Training steps of one rank under FSDP2, replayed.

Parameters are sharded in one number format, and gathered in another in which modules compute (`MixedPrecisionPolicy`):
in torchtitan float32 and bfloat16, with gradients summed in float32. The optimizer updates the rank's own rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date

from ...costs.optimizers import ALIASES
from ...errors import InputError
from ...kernels.meter import Meter, Place
from ...kernels.tensor import DTYPES
from ...layouts.rank import RankFlow
from ...model import ModelSpec
from ...run.layout import Layout
from ..dtensor import Divided
from ..fold import loops
from ..recording import Recorded, Recorder
from ..training import Training, TrainingRun, repeated, two_steps
from .groups import Sharding, Traffic
from .lowering import HEAD, MODEL, Sharded


@dataclass(frozen=True)
class Fsdp:
    """How `fully_shard` is called.

    dtype: number format of shards, of their gradients and of the optimizer's states.
    reduced: number format in which gradients are summed over ranks.
    keeps_last: whether the last layer stays gathered between forward and backward pass, as in torchtitan; its backward
        pass comes at once.
    reduces_each: whether the gradients of every micro-batch are summed over ranks, as in torchtitan, or those of the
        last one alone, which then has the sum of all (`set_requires_gradient_sync`).
    splits: whether the embedding is a group of its own, and the last norm with the output layer another, as in
        torchtitan since 2025-07-28; else they are one group, whose gradients wait for the end of the backward pass.
    float8: whether the matrices of layers are gathered in 8 bits (torchao's `enable_fsdp_float8_all_gather`).
    """

    dtype: str = "float32"
    reduced: str = "float32"
    keeps_last: bool = True
    reduces_each: bool = True
    splits: bool = False
    float8: bool = False


BY_ELEMENT = ("adamw", "sgd")
"""Optimizers that update each element by itself, and so a rank's rows without the others."""

TITAN = Fsdp()
"""As torchtitan called it before 2025-07-28."""

SPLIT = date(2025, 7, 28)
"""Since when torchtitan has groups of their own for embedding and head (83e694105)."""

EAGER_LOSS = date(2024, 12, 18), date(2025, 4, 2)
"""From when (e8977b007) to when (bbb1b616e) torchtitan compiled layers but not the loss."""


def called(spec: ModelSpec, how: Training, version: date | None = None) -> tuple[Training, Fsdp]:
    """How torchtitan trains a model, and calls `fully_shard`, where one device would be trained like that.

    Master weights are the shards themselves. Sums of gradients are in float32, unless they have a format of their own.
    version: the date of torchtitan; None (default) for the newest.
    """
    dtype = "float32" if how.master else how.dtype
    reduced = "float32" if how.gradient_dtype is None else how.gradient_dtype.name
    newer = version is None or version >= SPLIT
    eager_loss = version is not None and EAGER_LOSS[0] <= version < EAGER_LOSS[1]
    alone = replace(how, master=False, gradient_dtype=None)
    if eager_loss:
        alone = replace(alone, choices=replace(how.choices, compiled_loss=False))
    return alone, Fsdp(dtype, reduced, splits=newer and why_not_split(spec, how) == "")


def sharding(how: Training, layout: Layout, rank: int, fsdp: Fsdp = TITAN) -> Sharding:
    """How a rank's parameters are sharded.

    Raises `InputError` for a layout that divides more than parameters, for a rank that it does not have, and for
    training that FSDP2 is not modelled with.
    """
    for name, option in (("pp", "--pp"), ("cp", "--cp"), ("ep", "--ep")):
        if getattr(layout, name) > 1:
            raise InputError(f"{option} {getattr(layout, name)}: with FSDP2 it is not modelled; expected 1")
    if layout.sequence_parallel:
        raise InputError("--sequence-parallel: with FSDP2 it is not modelled; expected --no-sequence-parallel")
    if not 0 <= rank < layout.world:
        raise InputError(
            f"--rank {rank}: the layout has {layout.world} ranks; expected one from 0 to {layout.world - 1}"
        )
    optimizer = ALIASES.get(how.optimizer, how.optimizer)
    if optimizer not in BY_ELEMENT:
        known = " or ".join(BY_ELEMENT)
        raise InputError(f"--optimizer {how.optimizer}: on shards it is not modelled; expected {known}")
    for name in (fsdp.dtype, fsdp.reduced):
        if name not in DTYPES:
            raise InputError(f"FSDP2 in {name} is not modelled; expected one of {', '.join(DTYPES)}")
    for holds, words in (
        (how.adapters is not None, "adapters"),
        (how.autocast, "autocast beside its own mixed precision"),
        (how.master, "master weights: the shards themselves have their format"),
        (how.optimizer_in_backward, "the optimizer in the backward pass"),
        (how.gradient_dtype is not None, "sums of gradients in a format of their own"),
        (how.keeps_gradients, "gradients that are set to zero"),
    ):
        if holds:
            raise InputError(f"FSDP2 with {words} is not modelled")
    formats = DTYPES[fsdp.dtype], DTYPES[how.dtype], DTYPES[fsdp.reduced]
    return Sharding(layout.shards, layout.at(rank).dp % layout.shards, layout.hsdp_replicas, *formats, fsdp.float8)


class ShardedAndDivided(Divided, Sharded):
    """Layers whose products are divided, and what is left of their parameters sharded."""


class FsdpRun(TrainingRun):
    """Replays steps of one rank.

    traffic: what its groups share, and what they have sent. program: that of a rank of tensor parallelism, by default
    that of the whole model.
    """

    profile: type[Sharded] = Sharded
    lowering: Sharded

    def __init__(
        self,
        spec: ModelSpec,
        how: Training,
        sharding: Sharding,
        fsdp: Fsdp = TITAN,
        reshard: bool = True,
        layers: Mapping[int, int] | None = None,
        workspace: int = 0,
        meter: Meter | Recorder | None = None,
        program: RankFlow | None = None,
    ) -> None:
        if program is not None and program.shares.layout.tp > 1:
            self.profile = ShardedAndDivided
        super().__init__(spec, how, layers, workspace, meter, program)
        self.fsdp, self.reshard = fsdp, reshard
        self.traffic = Traffic(self.graph, sharding)
        self.stacks = [loop.path for loop in loops(spec)]
        if fsdp.splits and (why := why_not_split(spec, how)):
            raise InputError(f"FSDP2 with groups of their own for embedding and head: {why}")
        self.lowering.shard(self.traffic, self.stacks, fsdp.splits)

    def set_up(self) -> None:
        super().set_up()
        groups = self.lowering.groups
        last = max((layer for layer in groups if layer.path == self.stacks[-1]), default=MODEL)
        for layer, group in groups.items():
            kept = layer in (MODEL, HEAD) or (self.fsdp.keeps_last and layer == last)
            group.reshards = self.reshard and not kept

    def micro_batches(self) -> None:
        """Runs the micro-batches of a step.

        If only the last one's gradients are summed, those between the first and the last are alike.
        """
        every = self.fsdp.reduces_each
        count = min(self.how.microbatches, 2 if every else 3)
        for i in range(count):
            if i:
                self.next_batch()
            self.traffic.reduces = every or i == count - 1
            self.forward_and_backward()

    def finish_backward(self) -> None:
        self.meter.place = Place("backward")
        self.traffic.finish(list(self.lowering.groups.values()))


def why_not_split(spec: ModelSpec, how: Training) -> str:
    """Why embedding and head are no groups of their own; empty if they may be."""
    if spec.kind != "decoder" or spec.tie_word_embeddings or spec.head.type != "lm":
        return "the model is no decoder with an untied language-model head"
    if how.choices.cross_entropy in ("chunked", "split") or how.include:
        return "the loss runs the head"
    return ""


def record(
    spec: ModelSpec,
    how: Training,
    sharding: Sharding,
    fsdp: Fsdp = TITAN,
    reshard: bool = True,
    layers: Mapping[int, int] | None = None,
    workspace: int = 0,
    program: RankFlow | None = None,
) -> Recorded:
    """Records set-up and two steps of one rank, for `Unfolding`. layers, program: as of `FsdpRun`."""
    run = FsdpRun(spec, how, sharding, fsdp, reshard, layers, workspace, meter := Recorder(), program)
    run.set_up()
    set_up = meter.cut()
    run.next_batch()
    batch = meter.cut()
    run.micro_batches()
    found = repeated(run, meter, set_up, batch, meter.cut())
    return found or two_steps(
        FsdpRun(spec, how, sharding, fsdp, reshard, layers, workspace, meter := Recorder(), program), meter
    )
