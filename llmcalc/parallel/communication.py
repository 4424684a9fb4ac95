"""What one rank sends in a training step, by group and kind: how often, and how many bytes.

tensor, experts, sequence: where placements meet (`placements.py`), once for each micro-batch and chunk of layers.
data: gradients are summed over the ranks that hold the same weights, or each rank gets the sum of its part; weights are
    gathered (Rajbhandari 2019, arXiv:1910.02054, §7). What a framework sends, and in which format:
    megatron: gradients as float32 once in a step, all of a chunk in one buffer; with `--zero 1`, its distributed
        optimizer, each rank gets its part and gathers the weights (Megatron-LM, core/distributed, without
        `--overlap-grad-reduce`, and without what pads its buffers).
    fsdp2: for each micro-batch, every layer's weights before its forward pass and, if they are given back, before its
        backward pass, as bfloat16, and what is in no layer once; gradients after its backward pass, as float32
        (torchtitan, MixedPrecisionPolicy). In a pipeline once in a step (torch/distributed/pipelining/stage.py).
    torch: gradients once in a step, in the format of the weights, in buckets of 25 MiB (DistributedDataParallel).
    deepspeed: gradients as the weights, in buckets of 500 million elements; in stages 2 and 3 for each micro-batch;
        weights once in a step, in stage 3 module by module in both passes (deepspeed/runtime/zero).
pipeline: each stage sends its output to the next one, and the gradient of its input to the one before.
embedding: the stages that have a copy of the embedding sum its gradients (Megatron-LM, finalize_model_grads.py).
loss: the ranks that divide the vocabulary find the greatest logit of each token, the sum of exponentials and the logit
    of the target: three sums over ranks as float32 (Megatron-LM, core/tensor_parallel/cross_entropy.py; torch's
    `loss_parallel`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..algebra import Number
from ..errors import InputError
from ..flow.value import Value
from ..model import ModelSpec
from ..optional import MTP
from ..workload.recompute import NONE, Recompute
from ..workload.rows import LOGITS
from ..workload.run_config import Sight
from ..workload.workload import Workload
from .layout import ALONE, Layout, Stage, stages
from .layout_request import Framework
from .placements import FLOAT32, Collective, CollectiveKind, Group, Placements
from .rank_program import RankFlow, is_divided, rank_program
from .weight_shards import Held, held, shard_rows

BUCKETS = 2**20, 25 * 2**20
"""Bytes of gradients in the first bucket of DistributedDataParallel, and in the others."""

DEEPSPEED_BUCKET = 5 * 10**8
"""Elements of gradients that DeepSpeed sums at once (`reduce_bucket_size`)."""

BFLOAT16 = 2


class Traffic(NamedTuple):
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


def communication(
    spec: ModelSpec,
    layout: Layout,
    workload: Workload,
    micro_batches: int = 1,
    framework: Framework = "megatron",
    rank: int = 0,
    *,
    width: int = BFLOAT16,
    include: frozenset[str] = frozenset(),
    recompute: Recompute = NONE,
) -> list[Traffic]:
    """What a rank sends in a training step.

    workload: one micro-batch, of whole sequences. width: bytes of an element of the weights and of what the passes
    compute. include: optional parts of the model that are trained too, none by default. recompute: what runs again in
    the backward pass, nothing by default.
    Raises `InputError` for a layout or framework that is not modelled.
    """
    if workload.seq % layout.cp:
        raise InputError(f"--cp {layout.cp}: does not divide --seq {workload.seq}; expected a divisor")
    own = Sight(workload.with_(seq=workload.seq // layout.cp, phase="training"))
    megatron = framework == "megatron"
    again = (
        replace(recompute, reentrant=True) if megatron and recompute.layers else recompute
    )  # its `CheckpointFunction`
    chunks = list(_chunks(spec, layout, micro_batches, rank))
    told: list[Traffic] = []
    for chunk in chunks:
        places = Placements(layout, own, width, include, megatron, again)
        passed = places.run(chunk.program)
        told += [Traffic(one.group, one.ranks, one.kind, one.bytes, one.times * chunk.batches) for one in passed]
        told += _loss(layout, chunk, own)
        told += _sends(layout, chunk, own, width)
    told += _shared_gradients(spec, layout, chunks, include, framework, width)
    told += _data(layout, chunks, include, framework, width)
    told += _embedding(spec, layout, chunks, include, framework, width)
    return _merged(told)


def _merged(told: Iterable[Traffic]) -> list[Traffic]:
    """Equal messages as one entry; none that has no other rank, or nothing in it."""
    counts: dict[Traffic, Number] = {}
    for one in told:
        if one.ranks > 1 and one.bytes and one.count:
            alike = one._replace(count=0)
            counts[alike] = counts.get(alike, 0) + one.count
    return [one._replace(count=count) for one, count in counts.items()]


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


def _loss(layout: Layout, chunk: Chunk, sight: Sight) -> Iterator[Traffic]:
    """The sums of the loss over a divided vocabulary."""
    last = chunk.program.result
    if last is not None and (chunk.stage is None or chunk.stage.last) and is_divided(last.axes):
        yield Traffic("tp", layout.tp, "all_reduce", sight.rows(LOGITS) * FLOAT32, 3 * chunk.batches)


def _sends(layout: Layout, chunk: Chunk, sight: Sight, width: int) -> Iterator[Traffic]:
    """The output of each chunk but the last, and the gradient of the input of each but the first."""
    each = layout.tp if layout.sequence_parallel else 1
    sent: tuple[Value | None, ...] = ()
    if chunk.stage is not None:
        program, stage = chunk.program, chunk.stage
        sent = (None if stage.last else program.exit, None if stage.first else program.entry)
    for value in sent:
        if value is not None:
            bytes = sight.rows(value.rows) * value.width * width // each
            yield Traffic("pp", layout.pp, "send", bytes, chunk.batches)


# --- at the end of a step --------------------------------------------------------------------------------------------


def _gradient_width(framework: Framework, width: int) -> int:
    """Bytes of an element of gradients that are summed over ranks."""
    return FLOAT32 if framework in ("megatron", "fsdp2") else width


def _shared_gradients(
    spec: ModelSpec, layout: Layout, chunks: list[Chunk], include: frozenset[str], framework: Framework, width: int
) -> Iterator[Traffic]:
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
        if framework == "megatron":  # flattened into one buffer
            yield Traffic("tp", layout.tp, "all_reduce", sum(one.elements for one in parts) * FLOAT32, 1)
            continue
        for one in parts:  # torch: each by itself, as its group of FSDP2 or its bucket takes it
            count = one.count * (chunk.batches if layout.pp == 1 else 1)
            yield Traffic("tp", layout.tp, "all_reduce", one.tensor.size * width, count)


def _data(
    layout: Layout, chunks: list[Chunk], include: frozenset[str], framework: Framework, width: int
) -> Iterator[Traffic]:
    """Gradients and weights, over the ranks that hold the same ones; of experts, over others."""
    _check(layout, framework)
    for chunk in chunks:
        every = held(chunk.program, include)
        for expert in (False, True):
            own = [one for one in every if one.expert == expert]
            if own:
                ranks, shards = (
                    (layout.expert_dp, layout.expert_shards) if expert else (layout.dp * layout.cp, layout.shards)
                )
                group = Replicas(expert, shards if layout.zero else ranks, ranks // shards if layout.zero else 1)
                yield from _of_group(layout, chunk, own, group, framework, width)


def _check(layout: Layout, framework: Framework) -> None:
    """Raises `InputError` for what a framework does not divide."""
    stages_of: dict[Framework, tuple[int, ...]] = {"megatron": (0, 1), "torch": (0,), "fsdp2": (0, 2, 3)}
    allowed = stages_of.get(framework, (0, 1, 2, 3))
    if layout.zero not in allowed:
        expected = " or ".join(f"--zero {stage}" if stage else "none" for stage in allowed)
        raise InputError(f"--zero {layout.zero}: is not modelled of --framework {framework}; expected {expected}")


class Replicas(NamedTuple):
    """The ranks that hold the same weights. shards: ranks that divide them. replicas: groups of those."""

    expert: bool
    shards: int
    replicas: int

    def told(self, kind: CollectiveKind, bytes: Number, count: Number) -> Traffic:
        """A message to the ranks that divide the weights."""
        return Traffic("expert dp" if self.expert else "dp", self.shards, kind, bytes, count)

    def summed(self, bytes: Number, count: Number) -> Traffic:
        """A sum of this rank's part over all groups of them."""
        return Traffic("expert replicas" if self.expert else "replicas", self.replicas, "all_reduce", bytes, count)


def _of_group(
    layout: Layout, chunk: Chunk, own: list[Held], group: Replicas, framework: Framework, width: int
) -> Iterator[Traffic]:
    """The messages for weights that the same ranks hold."""
    elements, of_gradients = sum(one.elements for one in own), _gradient_width(framework, width)
    if framework == "fsdp2" and layout.zero:
        yield from _fsdp(layout, chunk, own, group, width)
    elif framework == "deepspeed" and layout.zero:
        reduces = chunk.batches if layout.zero >= 2 else 1
        for size in _cut(elements, DEEPSPEED_BUCKET):
            yield group.told("reduce_scatter", size * of_gradients, reduces)
            yield group.summed(size * of_gradients // group.shards, reduces)
        if layout.zero < 3:
            yield group.told("all_gather", elements * width, 1)
            return
        for modules in _by_module(own):
            size = sum(one.tensor.size for one in modules)
            yield group.told("all_gather", size * width, 2 * chunk.batches * modules[0].count)
    elif layout.zero:
        yield group.told("reduce_scatter", elements * of_gradients, 1)
        yield group.summed(elements * of_gradients // group.shards, 1)
        yield group.told("all_gather", elements * width, 1)
    elif framework == "torch":
        for size in _buckets(own, width):
            yield group.told("all_reduce", size, 1)
    elif framework == "deepspeed":
        for size in _cut(elements, DEEPSPEED_BUCKET):
            yield group.told("all_reduce", size * of_gradients, 1)
    else:
        yield group.told("all_reduce", elements * of_gradients, 1)


def _fsdp(layout: Layout, chunk: Chunk, own: list[Held], group: Replicas, width: int) -> Iterator[Traffic]:
    """The groups of FSDP2: every layer, and what is in none. All parts are as long as the longest."""
    rest = 0
    sizes: dict[tuple[object, ...], tuple[Number, Number]] = {}
    for one in own:
        rows, *others = one.tensor.shape
        size = shard_rows(rows, group.shards, 0) * group.shards
        for side in others:
            size *= side
        if one.path[0][0] in ("layers", MTP.name):
            key = tuple(one.path[0][1] or ())
            before, _ = sizes.get((one.path[0][0], *key), (0, 0))
            layers = len(key)
            sizes[one.path[0][0], *key] = before + size * (one.count // layers), layers
        else:
            rest += size
    reduces = chunk.batches if layout.pp == 1 else 1
    twice = 2 if layout.reshard and layout.zero == 3 and layout.pp == 1 else 1
    for size, count, gathers in [*((size, count, twice) for size, count in sizes.values()), (rest, 1, 1)]:
        yield group.told("all_gather", size * width, count * gathers * reduces)
        yield group.told("reduce_scatter", size * FLOAT32, count * reduces)
        yield group.summed(size * FLOAT32 // group.shards, count * reduces)


def _by_module(own: list[Held]) -> list[list[Held]]:
    """Parameters of the same module."""
    found: dict[object, list[Held]] = {}
    for one in own:
        found.setdefault(one.path, []).append(one)
    return list(found.values())


def _cut(elements: int, most: int) -> list[int]:
    """So many elements in buckets of at most so many."""
    full, rest = divmod(elements, most)
    return [most] * full + [rest] * (rest > 0)


def _buckets(own: list[Held], width: int) -> list[int]:
    """Bytes of the buckets of DistributedDataParallel, which fill from the last parameter to the first."""
    return bucket_sizes(one.tensor.size * width for one in reversed(own) for _ in range(one.count))


def bucket_sizes(gradients: Iterable[int]) -> list[int]:
    """Bytes of the buckets of DistributedDataParallel.

    gradients: bytes of each, in the order in which the backward pass completes them.
    """
    found: list[int] = []
    size = 0
    for bytes in gradients:
        size += bytes
        if size >= BUCKETS[min(len(found), 1)]:
            found.append(size)
            size = 0
    return found + [size] * (size > 0)


def _embedding(
    spec: ModelSpec, layout: Layout, chunks: list[Chunk], include: frozenset[str], framework: Framework, width: int
) -> Iterator[Traffic]:
    """The gradient of the embedding, over the first and the last stage, if both have it."""
    tied = spec.tie_word_embeddings and spec.head.type == "lm"
    if layout.pp == 1 or not (tied or (spec.mtp is not None and MTP.name in include)):
        return
    for chunk in chunks:
        if chunk.stage is not None and (chunk.stage.first or chunk.stage.last) and chunk.program.tables:
            table = next(iter(chunk.program.tables.values()))
            elements = table.ins[0].size * chunk.program.n(table.out)
            yield Traffic("embedding", 2, "all_reduce", elements * _gradient_width(framework, width), 1)
