"""Layouts over several devices: parallel group sizes, and each rank's index in every group.

Tensor parallelism (Shoeybi 2019, arXiv:1909.08053) divides heads, feed-forward widths and the vocabulary; sequence
parallelism (Korthikanti 2022, arXiv:2205.05198) what lies between, by tokens; context parallelism (Liu 2023,
arXiv:2310.01889) the sequence; pipeline parallelism (Narayanan 2021, arXiv:2104.04473) layers; expert parallelism
(Lepikhin 2020, arXiv:2006.16668) experts; data parallelism the batch, and ZeRO (Rajbhandari 2019, arXiv:1910.02054)
optimizer states, gradients and weights over it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import accumulate, chain, groupby
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..algebra import ceil_div
from ..errors import InputError
from ..frozen import frozen

Schedule: TypeAlias = Literal["1f1b", "interleaved", "zb-h1", "dualpipe"]

MAX_STAGE_LAYERS = 100_000
"""Largest number of layers of a stage: as many as a whole model may have."""

ContextExchange: TypeAlias = Literal["p2p", "a2a", "allgather"]

Zero: TypeAlias = Literal[0, 1, 2, 3]


class ImpossibleLayout(InputError):
    """The error raised for group sizes that contradict each other or do not divide the model."""


class Coordinates(NamedTuple):
    """A rank's index in each parallel group.

    tp, cp, dp, pp: its index in the groups that divide all weights but experts.
    etp, ep, edp: its index in the groups that divide experts.
    """

    tp: int
    cp: int
    dp: int
    pp: int
    etp: int
    ep: int
    edp: int


@frozen
class Layout:
    """The sizes of all parallel groups, and the options of each parallelism.

    tp, pp, cp, dp, ep: sizes of the groups, 1 by default.
    etp: ranks that divide one expert, tp by default.
    vpp: chunks of layers per rank of a pipeline, 1 by default.
    sequence_parallel: whether activations between tensor-parallel products are divided by tokens.
    cp_comm: exchange of keys and values in context parallelism: ring (p2p), by heads (a2a) or all-gather.
    zero: ZeRO stage: 1 shards optimizer states, 2 gradients too, 3 weights too; 0 nothing.
    hsdp_replicas: replicas of all shards among the data-parallel ranks, 1 by default.
    reshard: with ZeRO 3, whether a layer's gathered weights are freed after its forward pass.
    prefetch: with ZeRO 3, layers to all-gather ahead; 0 (default) for the framework's prefetch depth.
    schedule: order of micro-batches in a pipeline.
    pp_layout: layers of each stage, in order; even by default.
    """

    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    etp: int | None = None
    vpp: int = 1
    sequence_parallel: bool = False
    cp_comm: ContextExchange = "p2p"
    zero: Zero = 0
    hsdp_replicas: int = 1
    reshard: bool = True
    prefetch: int = 0
    schedule: Schedule = "1f1b"
    pp_layout: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Raises `InputError` for group sizes that contradict each other."""
        for option_name in ("tp", "pp", "cp", "dp", "ep", "vpp", "hsdp_replicas"):
            if getattr(self, option_name) < 1:
                raise InputError(
                    f"--{option_name.replace('_', '-')}: {getattr(self, option_name)}; expected a positive whole number"
                )
        if self.etp is not None and self.etp < 1:
            raise InputError(f"--etp: {self.etp}; expected a positive whole number")
        if self.zero not in get_args(Zero):
            raise InputError(f"--zero: {self.zero}; expected 1, 2 or 3")
        ranks_per_stage = self.tp * self.cp * self.dp
        if ranks_per_stage % (self.ep * self.expert_tp):
            raise ImpossibleLayout(
                f"--ep {self.ep} with --etp {self.expert_tp}: {self.ep * self.expert_tp} does not divide "
                f"tp · cp · dp = {ranks_per_stage}; expected a divisor"
            )
        if self.dp % self.hsdp_replicas:
            raise ImpossibleLayout(
                f"--hsdp-replicas: {self.hsdp_replicas} does not divide --dp {self.dp}; expected a divisor"
            )
        if self.prefetch < 0:
            raise InputError(f"--prefetch: {self.prefetch}; expected 0 or more layers")
        if self.vpp > 1 and self.pp == 1:
            raise ImpossibleLayout(f"--vpp: {self.vpp} chunks a rank need a pipeline; expected --pp of at least 2")
        if self.schedule == "interleaved" and self.vpp == 1:
            raise ImpossibleLayout("--schedule interleaved: needs several chunks a rank; expected --vpp of at least 2")
        if self.schedule in ("zb-h1", "dualpipe") and self.vpp > 1:
            raise InputError(f"--schedule {self.schedule}: has chunks of its own; expected no --vpp")
        if self.is_bidirectional and self.pp % 2:
            raise ImpossibleLayout(
                f"--schedule dualpipe: takes an even number of stages; expected an even --pp, not {self.pp}"
            )
        if self.pp_layout is not None and len(self.pp_layout) != self.pp * self.vpp:
            raise ImpossibleLayout(
                f"--pp-layout: {len(self.pp_layout)} stages; expected pp · vpp = {self.pp * self.vpp} numbers of layers"
            )
        if self.pp_layout is not None and max(self.pp_layout) > MAX_STAGE_LAYERS:
            raise InputError(
                f"--pp-layout: {max(self.pp_layout)} layers of a stage; expected at most {MAX_STAGE_LAYERS:,}"
            )

    @property
    def world_size(self) -> int:
        """The number of devices (ranks) of the layout."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def is_bidirectional(self) -> bool:
        """Whether micro-batches enter the pipeline at both ends (DualPipe)."""
        return self.schedule == "dualpipe"

    @property
    def expert_tp(self) -> int:
        """Number of ranks that shard each expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def replica_devices(self) -> int:
        """The smallest number of devices that together have all weights of the model."""
        return self.pp * math.lcm(self.tp, self.ep * self.expert_tp)

    @property
    def expert_dp(self) -> int:
        """Number of ranks with the same shard of the same experts."""
        return self.tp * self.cp * self.dp // (self.ep * self.expert_tp)

    @property
    def shard_count(self) -> int:
        """Number of ranks over which ZeRO shards non-expert weights: data- and context-parallel ranks."""
        return self.dp * self.cp // self.hsdp_replicas

    @property
    def expert_shard_count(self) -> int:
        """Number of ranks over which ZeRO shards experts."""
        return max(1, self.expert_dp // self.hsdp_replicas)

    def coordinates(self, rank: int) -> Coordinates:
        """Returns a rank's index in each group, in rank order tp, cp, dp, pp.

        Source: Megatron-LM, parallel_state.py, `RankGenerator`, order tp-cp-ep-dp-pp, with a second one for experts;
        torchtitan's mesh has the same order.
        """
        remaining_rank, tp = divmod(rank, self.tp)
        remaining_rank, cp = divmod(remaining_rank, self.cp)
        pp, dp = divmod(remaining_rank, self.dp)
        remaining_rank, etp = divmod(rank, self.expert_tp)
        remaining_rank, ep = divmod(remaining_rank, self.ep)
        return Coordinates(tp, cp, dp, pp, etp, ep, remaining_rank % self.expert_dp)

    def rank(self, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """Returns the number of the rank with these group indices."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def data(self) -> dict[str, object]:
        """Returns the layout as a JSON object."""
        field_values = {layout_field.name: getattr(self, layout_field.name) for layout_field in fields(self)}
        return {"world": self.world_size, **field_values, "etp": self.expert_tp}

    def options(self) -> str:
        """Returns the command-line options of this layout, without defaults and without the schedule of `--vpp`."""
        return " ".join(self.options_by_field().values())

    def options_by_field(self) -> dict[str, str]:
        """Returns field → command-line option with value, for the options in `options`."""
        option_texts: dict[str, str] = {}
        for layout_field in fields(self):
            field_value, option_name = getattr(self, layout_field.name), f"--{layout_field.name.replace('_', '-')}"
            if field_value == layout_field.default or (field_value == "interleaved" and self.vpp > 1):
                continue
            if layout_field.name == "reshard" and not self.zero:  # nothing is gathered
                continue
            if isinstance(field_value, bool):
                option_texts[layout_field.name] = option_name if field_value else f"--no-{option_name[2:]}"
            else:
                value_text = stage_layers_option(field_value) if isinstance(field_value, tuple) else str(field_value)
                option_texts[layout_field.name] = f"{option_name} {value_text}"
        return option_texts


def stage_layers_option(stage_layer_counts: Sequence[int]) -> str:
    """Returns numbers of layers as the value of `--pp-layout`: 2,2,2,3 as `2x3,3`."""
    equal_stage_runs = [
        (layer_count, len(list(stage_count))) for layer_count, stage_count in groupby(stage_layer_counts)
    ]
    return ",".join(
        f"{layers_per_stage}x{stage_count}" if stage_count > 1 else str(layers_per_stage)
        for layers_per_stage, stage_count in equal_stage_runs
    )


ONE_DEVICE = Layout()
"""The layout of a run on one device."""


class Stage(NamedTuple):
    """A pipeline stage: consecutive layers on one rank.

    pipeline_rank: the rank of the pipeline.
    chunk_index: the index of the stage among the rank's stages.
    layers: indices of the layers in the model.
    has_embedding, has_head: whether the stage has the embedding, and the head.
    """

    pipeline_rank: int
    chunk_index: int
    layers: range
    has_embedding: bool
    has_head: bool


class RankChunks(NamedTuple):
    """The layers of one pipeline rank, chunk by chunk.

    pipeline_rank: the rank of the pipeline.
    layers: indices of the layers in the model.
    has_embedding, has_head: whether the rank has the embedding, and the head.
    """

    pipeline_rank: int
    layers: tuple[int, ...]
    has_embedding: bool
    has_head: bool


def rank_chunks(layout: Layout, layer_count: int, rank: int) -> RankChunks:
    """Returns the layers of one pipeline rank. A DualPipe rank has two stages, one from each end.

    layer_count: number of layers of the model.
    Raises `InputError` for a number of layers that the stages do not add up to.
    """
    stage_sizes, last_stage_index = layers_of_stages(layout, layer_count), layout.pp * layout.vpp - 1
    stage_starts = [*accumulate(stage_sizes, initial=0)]
    ranks = sorted({rank, layout.pp - 1 - rank}) if layout.is_bidirectional else [rank]
    stage_indices = [chunk_index * layout.pp + stage_rank for chunk_index in range(layout.vpp) for stage_rank in ranks]
    layer_ranges = (range(stage_starts[i], stage_starts[i + 1]) for i in stage_indices)
    return RankChunks(
        rank, tuple(chain.from_iterable(layer_ranges)), 0 in stage_indices, last_stage_index in stage_indices
    )


def stage_sizes_between_ends(
    layer_count: int,
    pp: int,
    chunk_count: int,
    first_rank_layers: int | None,
    last_rank_layers: int | None,
    option_names: str,
) -> tuple[int, ...]:
    """Returns the number of layers per stage if the number of layers on the first or the last rank is given.

    chunk_count: stages of a rank. first_rank_layers, last_rank_layers: None for as many as every other rank.
    option_names: the arguments in messages. Raises `InputError` for layers that the other ranks do not divide.
    """
    middle_layer_count = layer_count - (first_rank_layers or 0) - (last_rank_layers or 0)
    middle_rank_count = pp - (first_rank_layers is not None) - (last_rank_layers is not None)
    divides_evenly = (
        middle_layer_count == 0
        if middle_rank_count == 0
        else middle_rank_count > 0 and middle_layer_count % middle_rank_count == 0
    )
    if not divides_evenly:
        raise InputError(
            f"{option_names}: {middle_layer_count} layers are left for {max(0, middle_rank_count)} stages; "
            f"expected a multiple"
        )
    layer_count_by_rank = [middle_layer_count // max(1, middle_rank_count)] * pp
    layer_count_by_rank[0] = layer_count_by_rank[0] if first_rank_layers is None else first_rank_layers
    layer_count_by_rank[-1] = layer_count_by_rank[-1] if last_rank_layers is None else last_rank_layers
    if any(rank_layer_count % chunk_count for rank_layer_count in layer_count_by_rank):
        raise InputError(f"--num-virtual-stages-per-pipeline-rank: {chunk_count} does not divide {layer_count_by_rank}")
    return tuple(rank_layer_count // chunk_count for rank_layer_count in layer_count_by_rank) * chunk_count


def stage_sizes_of_most_layers(
    layer_count: int, pp: int, most_layers: int, rounds_up: bool | None, option_names: str
) -> tuple[int, ...]:
    """Returns the number of layers per stage, for the fewest stages that have at most `most_layers` layers each.

    rounds_up: whether their number is rounded up to a multiple of the ranks, or down; None to refuse another number.
    option_names: the arguments in messages. Raises `InputError` for a number of stages that ranks do not share.
    """
    fewest_stages = stage_count = ceil_div(layer_count, most_layers)
    if rounds_up is not None:
        stage_count = pp * (ceil_div(stage_count, pp) if rounds_up else stage_count // pp)
    if stage_count % pp or not 0 < stage_count <= layer_count:
        raise InputError(
            f"{option_names}: {fewest_stages} stage{'s' * (fewest_stages != 1)} of {layer_count} layers; expected a "
            f"multiple of the {pp} ranks"
        )
    return tuple(layer_count // stage_count + (i < layer_count % stage_count) for i in range(stage_count))


def stage_sizes_with_counted_ends(
    layer_count: int, stage_count: int, counts_embedding: bool, counts_loss: bool, option_names: str
) -> tuple[int, ...]:
    """Returns the number of layers per stage if the division counts the embedding or the loss as a layer.

    stage_count: stages of all ranks. option_names: the arguments in messages.
    Raises `InputError` for layers that do not divide evenly.
    """
    layer_count_with_ends = layer_count + counts_embedding + counts_loss
    if layer_count_with_ends % stage_count:
        raise InputError(f"{option_names}: {layer_count_with_ends} parts; expected a multiple of {stage_count} stages")
    stage_sizes = [layer_count_with_ends // stage_count] * stage_count
    stage_sizes[0] -= counts_embedding
    stage_sizes[-1] -= counts_loss
    return tuple(stage_sizes)


def check_divided_heads(head_counts: Sequence[int], tp: int, cp: int, option_names: tuple[str, str]) -> None:
    """Raises `InputError` if `cp` ranks do not divide the heads of queries and keys that they exchange all-to-all.

    Transformer Engine asserts it of a rank's heads (context_parallel.py, `AttnFuncWithCPAndQKVOA2A`).
    head_counts: heads of the model. option_names: those of the exchange and of the number of ranks.
    """
    heads_per_rank = [max(1, head_count // tp) for head_count in head_counts]
    if any(rank_head_count % cp for rank_head_count in heads_per_rank):
        exchange_option, ranks_option = option_names
        raise InputError(
            f"{exchange_option} a2a: {ranks_option} {cp} does not divide the {' and '.join(map(str, heads_per_rank))} "
            f"heads of queries and keys of a rank; expected a divisor of both, or {exchange_option} p2p"
        )


def layers_of_stages(layout: Layout, layer_count: int) -> tuple[int, ...]:
    """Returns the number of layers of each stage of a pipeline, in the order of a micro-batch.

    layer_count: number of layers of the model.
    Raises `InputError` for a number of layers that the stages do not add up to.
    """
    stage_count = layout.pp * layout.vpp
    if layout.pp_layout is None and layer_count % stage_count:
        raise ImpossibleLayout(
            f"--pp {layout.pp}: {stage_count} stages do not divide {layer_count} layers; expected a divisor, or "
            "--pp-layout"
        )
    stage_sizes = layout.pp_layout or (layer_count // stage_count,) * stage_count
    if sum(stage_sizes) != layer_count:
        raise ImpossibleLayout(f"--pp-layout: {sum(stage_sizes)} layers in all; expected the model's {layer_count}")
    return stage_sizes


def stages(layout: Layout, layer_count: int) -> Iterator[Stage]:
    """Yields a pipeline's stages in the order of a micro-batch.

    layer_count: number of layers of the model.
    Chunk c of rank r is stage c · pp + r (Narayanan 2021, §2.2.2); under DualPipe rank r has the stages r and
    pp − 1 − r (DeepSeek-V3, arXiv:2412.19437, §3.2.1), and this function yields stage r alone.
    Raises `InputError` for a number of layers that the stages do not add up to.
    """
    stage_count, first_layer_index = layout.pp * layout.vpp, 0
    for stage_index, stage_layer_count in enumerate(layers_of_stages(layout, layer_count)):
        yield Stage(
            stage_index % layout.pp,
            stage_index // layout.pp,
            range(first_layer_index, first_layer_index + stage_layer_count),
            stage_index == 0,
            stage_index == stage_count - 1,
        )
        first_layer_index += stage_layer_count
