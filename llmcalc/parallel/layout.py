"""How a run is laid out over devices: what is divided, by how many, and who stands where.

Tensor parallelism (Shoeybi 2019, arXiv:1909.08053) divides heads, feed-forward widths and the vocabulary; sequence
parallelism (Korthikanti 2022, arXiv:2205.05198) what lies between, by tokens; context parallelism (Liu 2023,
arXiv:2310.01889) the sequence; pipeline parallelism (Narayanan 2021, arXiv:2104.04473) layers; expert parallelism
(Lepikhin 2020, arXiv:2006.16668) experts; data parallelism the batch, and ZeRO (Rajbhandari 2019, arXiv:1910.02054)
optimizer states, gradients and weights over it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..errors import InputError

Schedule: TypeAlias = Literal["1f1b", "interleaved", "zb-h1", "dualpipe"]

MOST_STAGE_LAYERS = 100_000
"""Layers that a stage may be given: as many as a whole model may have."""

ContextExchange: TypeAlias = Literal["p2p", "a2a", "allgather"]

Zero: TypeAlias = Literal[0, 1, 2, 3]


class ImpossibleLayout(InputError):
    """Sizes of groups that cannot be together, or that do not divide the model."""


class Coordinates(NamedTuple):
    """Where a rank stands in each group. etp, ep, edp: where its experts stand, of which groups are others."""

    tp: int
    cp: int
    dp: int
    pp: int
    etp: int
    ep: int
    edp: int


@dataclass(frozen=True)
class Layout:
    """tp, pp, cp, dp, ep: the sizes of the groups, 1 by default.

    etp: ranks that divide one expert, tp by default. vpp: chunks of layers that a rank of a pipeline has, 1 by default.
    sequence_parallel: whether what lies between the products of tensor parallelism is divided by tokens.
    cp_comm: how ranks of a sequence exchange keys and values: in a ring, by heads, or all at once.
    zero: what data parallelism divides: optimizer states (1), gradients too (2), weights too (3); 0, nothing.
    hsdp_replicas: groups of data-parallel ranks that each hold all of the shards, 1 by default.
    reshard: with weights divided, whether a layer's are given back after its forward pass.
    prefetch: with weights divided, how many further layers each layer gathers ahead of them; 0 (default) leaves the
        order to the framework.
    schedule: the order of micro-batches in a pipeline. pp_layout: layers of each stage, in order; even by default.
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
        """Raises `InputError` for sizes that cannot be together."""
        for name in ("tp", "pp", "cp", "dp", "ep", "vpp", "hsdp_replicas"):
            if getattr(self, name) < 1:
                raise InputError(f"--{name.replace('_', '-')}: {getattr(self, name)}; expected a positive whole number")
        if self.etp is not None and self.etp < 1:
            raise InputError(f"--etp: {self.etp}; expected a positive whole number")
        if self.zero not in get_args(Zero):
            raise InputError(f"--zero: {self.zero}; expected 1, 2 or 3")
        inside = self.tp * self.cp * self.dp
        if inside % (self.ep * self.expert_tp):
            raise ImpossibleLayout(
                f"--ep {self.ep} with --etp {self.expert_tp}: {self.ep * self.expert_tp} does not divide "
                f"tp · cp · dp = {inside}; expected a divisor"
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
        if self.schedule == "dualpipe" and self.pp % 2:
            raise ImpossibleLayout(
                f"--schedule dualpipe: takes an even number of stages; expected an even --pp, not {self.pp}"
            )
        if self.pp_layout is not None and len(self.pp_layout) != self.pp * self.vpp:
            raise ImpossibleLayout(
                f"--pp-layout: {len(self.pp_layout)} stages; expected pp · vpp = {self.pp * self.vpp} numbers of layers"
            )
        if self.pp_layout is not None and max(self.pp_layout) > MOST_STAGE_LAYERS:
            raise InputError(
                f"--pp-layout: {max(self.pp_layout)} layers of a stage; expected at most {MOST_STAGE_LAYERS:,}"
            )

    @property
    def world(self) -> int:
        """The number of devices."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def expert_tp(self) -> int:
        """Ranks that divide one expert."""
        return self.tp if self.etp is None else self.etp

    @property
    def expert_dp(self) -> int:
        """Ranks that hold the same part of the same experts."""
        return self.tp * self.cp * self.dp // (self.ep * self.expert_tp)

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO divides what is no expert: the sequence's ranks hold the same weights too."""
        return self.dp * self.cp // self.hsdp_replicas

    @property
    def expert_shards(self) -> int:
        """Ranks over which ZeRO divides what is of experts."""
        return max(1, self.expert_dp // self.hsdp_replicas)

    def at(self, rank: int) -> Coordinates:
        """Where a rank stands. Neighbours are of one tensor group, then of one sequence, one batch, one pipeline.

        Source: Megatron-LM, parallel_state.py, `RankGenerator`, order tp-cp-ep-dp-pp, with a second one for experts;
        torchtitan's mesh has the same order.
        """
        rest, tp = divmod(rank, self.tp)
        rest, cp = divmod(rest, self.cp)
        pp, dp = divmod(rest, self.dp)
        rest, etp = divmod(rank, self.expert_tp)
        rest, ep = divmod(rest, self.ep)
        return Coordinates(tp, cp, dp, pp, etp, ep, rest % self.expert_dp)

    def rank(self, tp: int = 0, cp: int = 0, dp: int = 0, pp: int = 0) -> int:
        """The number of the rank that stands there."""
        return tp + self.tp * (cp + self.cp * (dp + self.dp * pp))

    def data(self) -> dict[str, object]:
        """The fields of the document `layout`."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"world": self.world, **named, "etp": self.expert_tp}

    def options(self) -> str:
        """The options that ask for it, without those of their defaults."""
        words: list[str] = []
        for field in fields(self):
            value, option = getattr(self, field.name), f"--{field.name.replace('_', '-')}"
            if value == field.default:
                continue
            if isinstance(value, bool):
                words.append(option if value else f"--no-{option[2:]}")
            else:
                words += [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
        return " ".join(words)


ALONE = Layout()
"""One device."""


class Stage(NamedTuple):
    """Layers that a rank of a pipeline runs one after the other.

    rank: of the pipeline. chunk: which of its chunks. layers: their indices in the model. first, last: whether the
        embedding comes before them, and the head after them.
    """

    rank: int
    chunk: int
    layers: range
    first: bool
    last: bool


class Chunks(NamedTuple):
    """All layers of one rank of a pipeline, whichever of its stages they are in.

    rank: of the pipeline. layers: their indices in the model. first, last: as of `Stage`.
    """

    rank: int
    layers: tuple[int, ...]
    first: bool
    last: bool


def chunks_of(layout: Layout, layers: int, rank: int) -> Chunks:
    """What a rank of a pipeline of so many layers has. Under DualPipe it has two stages, from both ends.

    Raises `InputError` for layers that the stages do not share out.
    """
    ranks = {rank, layout.pp - 1 - rank} if layout.schedule == "dualpipe" else {rank}
    own = [stage for stage in stages(layout, layers) if stage.rank in ranks]
    every = tuple(i for stage in own for i in stage.layers)
    return Chunks(rank, every, any(stage.first for stage in own), any(stage.last for stage in own))


def stages(layout: Layout, layers: int) -> Iterator[Stage]:
    """The stages of a pipeline of so many layers, in the order in which a micro-batch goes through them.

    Chunk c of rank r is stage c · pp + r (Narayanan 2021, §2.2.2); under DualPipe rank r has the stages r and
    pp − 1 − r (DeepSeek-V3, arXiv:2412.19437, §3.2.1), of which this gives the first.
    Raises `InputError` for layers that the stages do not share out.
    """
    count = layout.pp * layout.vpp
    if layout.pp_layout is None and layers % count:
        raise ImpossibleLayout(
            f"--pp {layout.pp}: {count} stages do not divide {layers} layers; expected a divisor, or --pp-layout"
        )
    sizes = layout.pp_layout or (layers // count,) * count
    if sum(sizes) != layers:
        raise ImpossibleLayout(f"--pp-layout: {sum(sizes)} layers in all; expected the model's {layers}")
    start = 0
    for i, size in enumerate(sizes):
        yield Stage(i % layout.pp, i // layout.pp, range(start, start + size), i == 0, i == count - 1)
        start += size
