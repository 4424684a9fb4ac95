"""The collective messages of one rank in a training step: number and bytes, by process group and kind of collective.

tensor, experts, sequence: where placements change (`placements.py`), once per micro-batch and chunk of layers.
data: all-reduce or reduce-scatter of gradients over the ranks with the same weights, and all-gather of weights
    (Rajbhandari 2019, arXiv:1910.02054, §7). Messages and formats differ by framework: each folder in `frameworks/` has
    a `GradientRules`.
pipeline: each stage sends its output to the next stage, and the gradient of its input to the previous stage.
embedding: stages with a copy of the embedding all-reduce its gradients (Megatron-LM, finalize_model_grads.py).
loss: ranks that divide the vocabulary all-reduce the largest logit of each token, the sum of exponentials and the logit
    of the target, as float32 (Megatron-LM, core/tensor_parallel/cross_entropy.py; torch's `loss_parallel`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from ..algebra import Number
from ..errors import InputError
from ..flow.value import Value
from ..frozen import frozen
from ..model import ModelSpec
from ..optional import MTP
from ..workload.recompute import NO_RECOMPUTATION, Recompute
from ..workload.rows import LOGITS
from ..workload.run_config import RunConfig
from ..workload.workload import Workload
from .layout import ONE_DEVICE, Layout, Stage, stages
from .placements import FLOAT32_BYTES, Collective, CollectiveKind, PlacementTracker, ProcessGroup
from .rank_program import RankFlow, cached_rank_program, is_divided, representative_stage
from .weight_shards import WeightShard, weight_shards

BFLOAT16_BYTES = 2

MAX_PROGRAMS = 512
"""Number of programs whose collectives are kept."""


class Message(NamedTuple):
    """Identical messages of one rank in one step.

    process_group: the group of ranks.
    ranks: size of the group.
    collective_kind: the collective operation, or a send.
    bytes: bytes of one message: of the whole tensor for a collective, of the sent tensor for a send.
    count: number of such messages in a step.
    """

    process_group: ProcessGroup
    ranks: int
    collective_kind: CollectiveKind
    bytes: Number
    count: Number

    @property
    def wire_bytes(self) -> Number:
        """Bytes that this rank sends per message."""
        return Collective("", self.collective_kind, self.process_group, self.ranks, False, self.bytes).wire_bytes


@frozen
class StageChunk:
    """A pipeline stage of this rank, and the stage's program.

    stage: the stage; None without a pipeline.
    program: the program of its layers.
    micro_batches: micro-batches that pass it in a step.
    """

    stage: Stage | None
    program: RankFlow
    micro_batches: int


class GradientRules(NamedTuple):
    """A framework's rules for gradient reduction over ranks with the same weights.

    framework: its name in errors.
    zero_stages: the ZeRO stages that it supports.
    group_messages: its messages for the weights of one replica group.
    reduces_in_float32: whether gradients are reduced as float32; otherwise in the format of the weights.
    reduces_in_one_buffer: whether gradients of weights that a tensor group replicates are all-reduced in one buffer.
    is_always_reentrant: whether recomputed layers always run as torch's `use_reentrant=True`, and products that read
        gathered tokens gather them again.
    """

    framework: str
    zero_stages: tuple[int, ...]
    group_messages: GroupMessages
    reduces_in_float32: bool = False
    reduces_in_one_buffer: bool = False
    is_always_reentrant: bool = False

    def gradient_element_bytes(self, element_bytes: int) -> int:
        """Returns the bytes per element of reduced gradients. element_bytes: bytes per element of the weights."""
        return FLOAT32_BYTES if self.reduces_in_float32 else element_bytes

    def check(self, layout: Layout) -> None:
        """Raises `InputError` for a ZeRO stage that the framework does not support."""
        if layout.zero not in self.zero_stages:
            expected_stages = " or ".join(
                f"--zero {zero_stage}" if zero_stage else "none" for zero_stage in self.zero_stages
            )
            raise InputError(
                f"--zero {layout.zero}: is not modelled of --framework {self.framework}; expected {expected_stages}"
            )


def rank_messages(
    spec: ModelSpec,
    layout: Layout,
    workload: Workload,
    gradient_rules: GradientRules,
    micro_batches: int = 1,
    rank: int = 0,
    *,
    element_bytes: int = BFLOAT16_BYTES,
    extra_parts: frozenset[str] = frozenset(),
    recompute: Recompute = NO_RECOMPUTATION,
) -> list[Message]:
    """Returns the messages of a rank in a training step.

    workload: one micro-batch, of whole sequences.
    gradient_rules: the framework's rules.
    element_bytes: bytes per element of weights and activations.
    extra_parts: optional parts of the model that are trained too, none by default.
    recompute: the recomputation in the backward pass, none by default.
    Raises `InputError` for a layout that is not modelled.
    """
    gradient_rules.check(layout)
    if workload.seq % layout.cp:
        raise InputError(f"--cp {layout.cp}: does not divide --seq {workload.seq}; expected a divisor")
    run_config = RunConfig(workload.with_changes(seq=workload.seq // layout.cp, phase="training"))
    is_reentrant = gradient_rules.is_always_reentrant and recompute.layers
    recompute_rule = replace(recompute, reentrant=True) if is_reentrant else recompute
    stage_chunks = list(_chunks_of_rank(spec, layout, micro_batches, rank, keeps_layer_indices=recompute.every > 1))
    pass_options = element_bytes, extra_parts, gradient_rules.is_always_reentrant, recompute_rule
    messages: list[Message] = []
    for stage_chunk in stage_chunks:
        for collective in _program_collectives(stage_chunk.program, run_config, *pass_options):
            repetitions = collective.repetitions * stage_chunk.micro_batches
            messages.append(
                Message(
                    collective.process_group,
                    collective.ranks,
                    collective.collective_kind,
                    collective.bytes,
                    repetitions,
                )
            )
        messages += _loss_messages(layout, stage_chunk, run_config)
        messages += _pipeline_messages(layout, stage_chunk, run_config, element_bytes)
    messages += _tensor_group_messages(spec, layout, stage_chunks, extra_parts, gradient_rules, element_bytes)
    messages += _data_messages(layout, stage_chunks, extra_parts, gradient_rules, element_bytes)
    messages += _embedding_messages(spec, layout, stage_chunks, extra_parts, gradient_rules, element_bytes)
    return _merge_equal(messages)


@lru_cache(maxsize=MAX_PROGRAMS)
def _program_collectives(
    program: RankFlow,
    run_config: RunConfig,
    element_bytes: int,
    extra_parts: frozenset[str],
    is_always_reentrant: bool,
    recompute: Recompute,
) -> tuple[Collective, ...]:
    """Returns the collectives of a program's passes; layouts that differ only in replicas or stages share a result."""
    placement_tracker = PlacementTracker(
        program.rank_axes.layout, run_config, element_bytes, extra_parts, is_always_reentrant, recompute
    )
    return tuple(placement_tracker.run_program(program))


def _merge_equal(messages: Iterable[Message]) -> list[Message]:
    """Merges identical messages, and drops empty messages and single-rank groups."""
    counts_by_message: dict[Message, Number] = {}
    for message in messages:
        if message.ranks > 1 and message.bytes and message.count:
            message_without_count = message._replace(count=0)
            counts_by_message[message_without_count] = counts_by_message.get(message_without_count, 0) + message.count
    return [message._replace(count=message_count) for message, message_count in counts_by_message.items()]


def _chunks_of_rank(
    spec: ModelSpec, layout: Layout, micro_batches: int, rank: int, keeps_layer_indices: bool
) -> Iterator[StageChunk]:
    """Yields a rank's pipeline stages. A DualPipe rank has two, each of which runs half of the micro-batches.

    keeps_layer_indices: whether messages depend on the indices of layers.
    """
    if layout.pp == 1:
        yield StageChunk(None, cached_rank_program(spec, layout, rank), micro_batches)
        return
    pp, layer_count = layout.coordinates(rank).pp, spec.main.num_hidden_layers
    all_stages = list(stages(layout, layer_count))
    rank_stages = [stage for stage in all_stages if stage.pipeline_rank == pp]
    if layout.is_bidirectional:
        rank_stages = [all_stages[pp], all_stages[-1 - pp]]
    for chunk_index, stage in enumerate(rank_stages):
        chunk_microbatches = (micro_batches + 1 - chunk_index) // 2 if layout.is_bidirectional else micro_batches
        recorded_stage = stage if keeps_layer_indices else representative_stage(spec, stage)
        yield StageChunk(recorded_stage, cached_rank_program(spec, layout, rank, recorded_stage), chunk_microbatches)


# --- per micro-batch -------------------------------------------------------------------------------------------------


def _loss_messages(layout: Layout, stage_chunk: StageChunk, run_config: RunConfig) -> Iterator[Message]:
    """Returns the all-reduces of the loss, which exist only if the vocabulary is divided over ranks."""
    logits = stage_chunk.program.result
    if logits is not None and (stage_chunk.stage is None or stage_chunk.stage.has_head) and is_divided(logits.axes):
        yield Message(
            "tp", layout.tp, "all_reduce", run_config.rows(LOGITS) * FLOAT32_BYTES, 3 * stage_chunk.micro_batches
        )


def _pipeline_messages(
    layout: Layout, stage_chunk: StageChunk, run_config: RunConfig, element_bytes: int
) -> Iterator[Message]:
    """Returns the outputs that stages send forward, and the input gradients that stages send back."""
    token_ranks = layout.tp if layout.sequence_parallel else 1
    sent_values: tuple[Value | None, ...] = ()
    if stage_chunk.stage is not None:
        program, stage = stage_chunk.program, stage_chunk.stage
        sent_values = (None if stage.has_head else program.exit, None if stage.has_embedding else program.stage_input)
    for sent_value in sent_values:
        if sent_value is not None:
            message_bytes = run_config.rows(sent_value.rows) * sent_value.width * element_bytes // token_ranks
            yield Message("pp", layout.pp, "send", message_bytes, stage_chunk.micro_batches)


# --- per step --------------------------------------------------------------------------------------------------------


def _tensor_group_messages(
    spec: ModelSpec,
    layout: Layout,
    stage_chunks: list[StageChunk],
    extra_parts: frozenset[str],
    gradient_rules: GradientRules,
    element_bytes: int,
) -> Iterator[Message]:
    """Yields all-reduces of the gradients of weights that all ranks of a tensor-parallel group store in full.

    Each rank has a partial sum: over its own tokens with sequence parallelism, over its own heads for norms of heads.
    """
    if layout.tp == 1:
        return
    for stage_chunk in stage_chunks:
        stage = stage_chunk.stage
        undivided_program = cached_rank_program(spec, ONE_DEVICE, 0, stage)
        shard_pairs = zip(
            weight_shards(stage_chunk.program, extra_parts), weight_shards(undivided_program, extra_parts), strict=True
        )
        partial_sum_shards = [
            weight_shard
            for weight_shard, undivided_shard in shard_pairs
            if weight_shard.tensor.shape == undivided_shard.tensor.shape
            and not weight_shard.is_expert
            and (layout.sequence_parallel or weight_shard.has_partial_gradient)
        ]
        if gradient_rules.reduces_in_one_buffer:
            message_bytes = sum(weight_shard.element_count for weight_shard in partial_sum_shards) * FLOAT32_BYTES
            yield Message("tp", layout.tp, "all_reduce", message_bytes, 1)
            continue
        for weight_shard in partial_sum_shards:
            message_count = weight_shard.module_count * (stage_chunk.micro_batches if layout.pp == 1 else 1)
            yield Message("tp", layout.tp, "all_reduce", weight_shard.tensor.size * element_bytes, message_count)


def _data_messages(
    layout: Layout,
    stage_chunks: list[StageChunk],
    extra_parts: frozenset[str],
    gradient_rules: GradientRules,
    element_bytes: int,
) -> Iterator[Message]:
    """Returns messages of gradients and weights among ranks with equal weights; experts have separate groups."""
    for stage_chunk in stage_chunks:
        all_shards = weight_shards(stage_chunk.program, extra_parts)
        for is_expert in (False, True):
            replicated_shards = [weight_shard for weight_shard in all_shards if weight_shard.is_expert == is_expert]
            if replicated_shards:
                ranks, sharding_ranks = (
                    (layout.expert_dp, layout.expert_shard_count)
                    if is_expert
                    else (layout.dp * layout.cp, layout.shard_count)
                )
                replica_group = ReplicaGroup(is_expert, ranks, 1)
                if layout.zero:
                    replica_group = ReplicaGroup(is_expert, sharding_ranks, ranks // sharding_ranks)
                yield from gradient_rules.group_messages(
                    ReplicatedWeights(layout, stage_chunk, replicated_shards, replica_group, element_bytes)
                )


class ReplicaGroup(NamedTuple):
    """The group of ranks with the same weights.

    is_expert: whether the weights are experts.
    shards: ranks that shard the weights.
    replicas: groups of such ranks, each with all shards (HSDP).
    """

    is_expert: bool
    shards: int
    replicas: int

    def message(self, collective_kind: CollectiveKind, message_bytes: Number, message_count: Number) -> Message:
        """Returns messages among the ranks over which the same weights are sharded."""
        return Message(
            "expert dp" if self.is_expert else "dp", self.shards, collective_kind, message_bytes, message_count
        )

    def replica_all_reduce(self, message_bytes: Number, message_count: Number) -> Message:
        """Returns all-reduces of this rank's shard over all replicas."""
        return Message(
            "expert replicas" if self.is_expert else "replicas",
            self.replicas,
            "all_reduce",
            message_bytes,
            message_count,
        )


@frozen
class ReplicatedWeights:
    """The weights of a stage that a group of ranks replicates. element_bytes: bytes per element."""

    layout: Layout
    stage_chunk: StageChunk
    weight_shards: list[WeightShard]
    replica_group: ReplicaGroup
    element_bytes: int

    @property
    def element_count(self) -> int:
        return sum(weight.element_count for weight in self.weight_shards)


GroupMessages: TypeAlias = Callable[[ReplicatedWeights], Iterator[Message]]
"""A framework's messages for weights that the same ranks hold."""


def _embedding_messages(
    spec: ModelSpec,
    layout: Layout,
    stage_chunks: list[StageChunk],
    extra_parts: frozenset[str],
    gradient_rules: GradientRules,
    element_bytes: int,
) -> Iterator[Message]:
    """Yields all-reduces of the embedding's gradient between first and last stage, if both have the embedding."""
    is_tied = spec.tie_word_embeddings and spec.head.type == "lm"
    if layout.pp == 1 or not (is_tied or (spec.mtp is not None and MTP.name in extra_parts)):
        return
    for stage_chunk in stage_chunks:
        if (
            stage_chunk.stage is not None
            and (stage_chunk.stage.has_embedding or stage_chunk.stage.has_head)
            and stage_chunk.program.tables
        ):
            embedding_table = next(iter(stage_chunk.program.tables.values()))
            table_element_count = embedding_table.input_axes[0].size * stage_chunk.program.element_count(
                embedding_table.output_axes
            )
            yield Message(
                "embedding",
                2,
                "all_reduce",
                table_element_count * gradient_rules.gradient_element_bytes(element_bytes),
                1,
            )
