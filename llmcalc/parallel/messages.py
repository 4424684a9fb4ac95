"""The messages of one rank in a training step, by group and kind: how often, and how many bytes.

tensor, experts, sequence: where placements meet (`placements.py`), once for each micro-batch and chunk of layers.
data: gradients are summed over the ranks that hold the same weights, or each rank gets the sum of its part; weights are
    gathered (Rajbhandari 2019, arXiv:1910.02054, §7). Which messages these are, and in which format, differs by
    framework: its folder in `frameworks/` has a `GradientRules`.
pipeline: each stage sends its output to the next one, and the gradient of its input to the one before.
embedding: the stages that have a copy of the embedding sum its gradients (Megatron-LM, finalize_model_grads.py).
loss: the ranks that divide the vocabulary find the greatest logit of each token, the sum of exponentials and the logit
    of the target: three sums over ranks as float32 (Megatron-LM, core/tensor_parallel/cross_entropy.py; torch's
    `loss_parallel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from ..algebra import Number
from ..errors import InputError
from ..flow.value import Value
from ..model import ModelSpec
from ..optional import MTP
from ..workload.recompute import NONE, Recompute
from ..workload.rows import LOGITS
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .layout import ALONE, Layout, Stage, stages
from .placements import FLOAT32, Collective, CollectiveKind, Group, Placements
from .rank_program import RankFlow, is_divided, rank_program
from .weight_shards import Held, held

BFLOAT16 = 2


class Message(NamedTuple):
    """Equal messages of one rank in a step.

    group: with whom. ranks: how many they are, this one included. kind: what is done.
    bytes: of one message, the whole tensor that is summed, gathered or scattered, or of what is sent.
    count: how many of them there are in a step.
    """

    group: Group
    ranks: int
    kind: CollectiveKind
    bytes: Number
    count: Number

    @property
    def wire_bytes(self) -> Number:
        """The bytes that this rank sends for one message."""
        return Collective("", self.kind, self.group, self.ranks, False, self.bytes).wire_bytes


@dataclass(frozen=True)
class Chunk:
    """Layers of this rank with their program.

    stage: which ones, None for all. batches: the micro-batches that go through them in a step.
    """

    stage: Stage | None
    program: RankFlow
    batches: int


class GradientRules(NamedTuple):
    """How a framework sums gradients over the ranks that hold the same weights.

    framework: its name, in errors.
    zero_stages: the ZeRO stages that it has.
    messages: the messages for weights that the same ranks hold.
    in_float32: whether gradients are summed as float32; else in the format of the weights.
    one_buffer: whether the gradients of weights that every rank of a tensor group holds whole are summed in one buffer.
    own_checkpointing: whether layers that run again are torch's `use_reentrant=True`, whatever was asked for, and
        products that read gathered tokens gather them again.
    """

    framework: str
    zero_stages: tuple[int, ...]
    messages: GroupMessages
    in_float32: bool = False
    one_buffer: bool = False
    own_checkpointing: bool = False

    def width(self, width: int) -> int:
        """Bytes of an element of gradients that are summed over ranks. width: of the weights."""
        return FLOAT32 if self.in_float32 else width

    def check(self, layout: Layout) -> None:
        """Raises `InputError` for a ZeRO stage that the framework does not have."""
        if layout.zero not in self.zero_stages:
            expected = " or ".join(f"--zero {stage}" if stage else "none" for stage in self.zero_stages)
            raise InputError(
                f"--zero {layout.zero}: is not modelled of --framework {self.framework}; expected {expected}"
            )


def rank_messages(
    spec: ModelSpec,
    layout: Layout,
    workload: Workload,
    gradients: GradientRules,
    micro_batches: int = 1,
    rank: int = 0,
    *,
    width: int = BFLOAT16,
    include: frozenset[str] = frozenset(),
    recompute: Recompute = NONE,
) -> list[Message]:
    """The messages of a rank in a training step.

    workload: one micro-batch, of whole sequences.
    gradients: the framework's rules.
    width: bytes of an element of the weights and of the activations.
    include: optional parts of the model that are trained too, none by default.
    recompute: what runs again in the backward pass, nothing by default.
    Raises `InputError` for a layout that is not modelled.
    """
    gradients.check(layout)
    if workload.seq % layout.cp:
        raise InputError(f"--cp {layout.cp}: does not divide --seq {workload.seq}; expected a divisor")
    own = RunConfig(workload.with_(seq=workload.seq // layout.cp, phase="training"))
    reentrant = gradients.own_checkpointing and recompute.layers
    recomputed = replace(recompute, reentrant=True) if reentrant else recompute
    chunks = list(_chunks(spec, layout, micro_batches, rank))
    messages: list[Message] = []
    for chunk in chunks:
        placements = Placements(layout, own, width, include, gradients.own_checkpointing, recomputed)
        for sent in placements.run(chunk.program):
            messages.append(Message(sent.group, sent.ranks, sent.kind, sent.bytes, sent.times * chunk.batches))
        messages += _loss(layout, chunk, own)
        messages += _sends(layout, chunk, own, width)
    messages += _shared_gradients(spec, layout, chunks, include, gradients, width)
    messages += _data(layout, chunks, include, gradients, width)
    messages += _embedding(spec, layout, chunks, include, gradients, width)
    return _merged(messages)


def _merged(messages: Iterable[Message]) -> list[Message]:
    """Equal messages as one entry; none that has no other rank, or nothing in it."""
    counts: dict[Message, Number] = {}
    for message in messages:
        if message.ranks > 1 and message.bytes and message.count:
            uncounted = message._replace(count=0)
            counts[uncounted] = counts.get(uncounted, 0) + message.count
    return [message._replace(count=count) for message, count in counts.items()]


def _chunks(spec: ModelSpec, layout: Layout, micro_batches: int, rank: int) -> Iterator[Chunk]:
    """The chunks of layers of a rank. Under DualPipe it has two stages, each for half of the micro-batches."""
    if layout.pp == 1:
        yield Chunk(None, rank_program(spec, layout, rank), micro_batches)
        return
    at, layers = layout.at(rank).pp, spec.main.num_hidden_layers
    every = list(stages(layout, layers))
    two_way = layout.schedule == "dualpipe"
    own = [every[at], every[-1 - at]] if two_way else [stage for stage in every if stage.rank == at]
    for number, stage in enumerate(own):
        batches = (micro_batches + 1 - number) // 2 if two_way else micro_batches
        yield Chunk(stage, rank_program(spec, layout, rank, stage), batches)


# --- between the passes of a micro-batch -----------------------------------------------------------------------------


def _loss(layout: Layout, chunk: Chunk, run_config: RunConfig) -> Iterator[Message]:
    """The sums of the loss over a divided vocabulary."""
    last = chunk.program.result
    if last is not None and (chunk.stage is None or chunk.stage.last) and is_divided(last.axes):
        yield Message("tp", layout.tp, "all_reduce", run_config.rows(LOGITS) * FLOAT32, 3 * chunk.batches)


def _sends(layout: Layout, chunk: Chunk, run_config: RunConfig, width: int) -> Iterator[Message]:
    """The output of each chunk but the last, and the gradient of the input of each but the first."""
    each = layout.tp if layout.sequence_parallel else 1
    sent: tuple[Value | None, ...] = ()
    if chunk.stage is not None:
        program, stage = chunk.program, chunk.stage
        sent = (None if stage.last else program.exit, None if stage.first else program.entry)
    for value in sent:
        if value is not None:
            bytes = run_config.rows(value.rows) * value.width * width // each
            yield Message("pp", layout.pp, "send", bytes, chunk.batches)


# --- at the end of a step --------------------------------------------------------------------------------------------


def _shared_gradients(
    spec: ModelSpec, layout: Layout, chunks: list[Chunk], include: frozenset[str], gradients: GradientRules, width: int
) -> Iterator[Message]:
    """Gradients of weights that all ranks of a tensor group have whole, and of which each computes a part: for its
    tokens with sequence parallelism, and of norms of its heads.
    """
    if layout.tp == 1:
        return
    for chunk in chunks:
        stage = chunk.stage
        whole = rank_program(spec, ALONE, 0, stage)
        pairs = zip(held(chunk.program, include), held(whole, include), strict=True)
        parts = [
            own
            for own, model in pairs
            if own.tensor.shape == model.tensor.shape and not own.expert and (layout.sequence_parallel or own.of_heads)
        ]
        if gradients.one_buffer:
            yield Message("tp", layout.tp, "all_reduce", sum(one.elements for one in parts) * FLOAT32, 1)
            continue
        for one in parts:
            count = one.count * (chunk.batches if layout.pp == 1 else 1)
            yield Message("tp", layout.tp, "all_reduce", one.tensor.size * width, count)


def _data(
    layout: Layout, chunks: list[Chunk], include: frozenset[str], gradients: GradientRules, width: int
) -> Iterator[Message]:
    """Gradients and weights, over the ranks that hold the same ones; of experts, over others."""
    for chunk in chunks:
        every = held(chunk.program, include)
        for expert in (False, True):
            own = [one for one in every if one.expert == expert]
            if own:
                ranks, shards = (
                    (layout.expert_dp, layout.expert_shards) if expert else (layout.dp * layout.cp, layout.shards)
                )
                group = Replicas(expert, shards if layout.zero else ranks, ranks // shards if layout.zero else 1)
                yield from gradients.messages(GroupOfWeights(layout, chunk, own, group, width))


class Replicas(NamedTuple):
    """The ranks that hold the same weights. shards: ranks that divide them. replicas: groups of those."""

    expert: bool
    shards: int
    replicas: int

    def message(self, kind: CollectiveKind, bytes: Number, count: Number) -> Message:
        """A message to the ranks that divide the weights."""
        return Message("expert dp" if self.expert else "dp", self.shards, kind, bytes, count)

    def summed(self, bytes: Number, count: Number) -> Message:
        """A sum of this rank's part over all groups of them."""
        return Message("expert replicas" if self.expert else "replicas", self.replicas, "all_reduce", bytes, count)


@dataclass(frozen=True)
class GroupOfWeights:
    """Weights of a chunk of layers that the same ranks hold. width: bytes of an element."""

    layout: Layout
    chunk: Chunk
    weights: list[Held]
    ranks: Replicas
    width: int

    @property
    def elements(self) -> int:
        return sum(weight.elements for weight in self.weights)


GroupMessages: TypeAlias = Callable[[GroupOfWeights], Iterator[Message]]
"""A framework's messages for weights that the same ranks hold."""


def _embedding(
    spec: ModelSpec, layout: Layout, chunks: list[Chunk], include: frozenset[str], gradients: GradientRules, width: int
) -> Iterator[Message]:
    """The gradient of the embedding, over the first and the last stage, if both have it."""
    tied = spec.tie_word_embeddings and spec.head.type == "lm"
    if layout.pp == 1 or not (tied or (spec.mtp is not None and MTP.name in include)):
        return
    for chunk in chunks:
        if chunk.stage is not None and (chunk.stage.first or chunk.stage.last) and chunk.program.tables:
            table = next(iter(chunk.program.tables.values()))
            elements = table.ins[0].size * chunk.program.n(table.out)
            yield Message("embedding", 2, "all_reduce", elements * gradients.width(width), 1)
