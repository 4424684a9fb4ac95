"""Schedules of a pipeline: in what order each rank runs its micro-batches, what is in flight meanwhile, and the bubble.

Sources of the orders:
1F1B: Narayanan 2019 (PipeDream) and 2021 (arXiv:2104.04473), §2.2.1; Megatron-LM, core/pipeline_parallel/schedules.py,
    `forward_backward_pipelining_without_interleaving`.
interleaved: Narayanan 2021, §2.2.2; the same file, `get_pp_rank_microbatches`, `get_schedule_table`,
    `forward_backward_pipelining_with_interleaving`.
ZB-H1: Qi 2023 (arXiv:2401.10241), §2.1 and figure 3; torch's ScheduleInterleavedZeroBubble with one stage a rank is the
    same. (The variant of sail-sg/zero-bubble-pipeline-parallelism, branch zb-h1-quick-start, divides the backward pass
    only where it must; it is not what is built here.)
DualPipe: DeepSeek-V3 (arXiv:2412.19437), §3.2.1; deepseek-ai/DualPipe, dualpipe/dualpipe.py, `DualPipe.step`.

Nothing here is a closed form: what is in flight is counted along the orders, and `timetable` runs them, each action
after those that it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate, chain
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..errors import InputError
from .layout import Layout, Schedule

Kind: TypeAlias = Literal["F", "B", "I", "W"]
"""torch's letters (torch.distributed.pipelining): forward, whole backward, backward of the inputs, of the weights."""


class Action(NamedTuple):
    """What a rank runs at once: one pass of one micro-batch through one of its chunks of layers.

    kind: which pass. chunk: of the rank. micro_batch: numbered from 0 through the whole batch.
    overlapped: whether it runs at the same time as the action after it (DualPipe's pairs).
    """

    kind: Kind
    chunk: int
    micro_batch: int
    overlapped: bool = False

    def __str__(self) -> str:
        return f"{self.kind} of micro-batch {self.micro_batch} in chunk {self.chunk}"


Order: TypeAlias = tuple[Action, ...]


class InFlight(NamedTuple):
    """What the backward pass of a rank still needs.

    whole: in each chunk, the micro-batches whose backward pass has not run.
    weights: in each chunk, the micro-batches of which only the backward pass of the weights is left.
    """

    whole: tuple[int, ...]
    weights: tuple[int, ...]

    @property
    def total(self) -> int:
        """Micro-batches of all chunks, each counted once in every chunk that has it in flight."""
        return sum(self.whole) + sum(self.weights)


@dataclass(frozen=True)
class Pipeline:
    """The order of every rank.

    ranks, chunks: of the pipeline, and of each of its ranks. micro_batches: of a step.
    orders: for each rank, its actions. two_way: whether micro-batches enter at both ends (DualPipe), the first half of
    them at rank 0 through the ranks' chunks 0, the others at the last rank through their chunks 1.
    """

    ranks: int
    chunks: int
    micro_batches: int
    orders: tuple[Order, ...]
    two_way: bool = False

    @property
    def stages(self) -> int:
        """Through how many chunks a micro-batch goes."""
        return self.ranks if self.two_way else self.ranks * self.chunks

    def stage(self, rank: int, chunk: int) -> int:
        """Which of a micro-batch's stages a rank's chunk is."""
        if self.two_way:
            return self.ranks - 1 - rank if chunk else rank
        return chunk * self.ranks + rank

    def rank_of(self, stage: int, micro_batch: int) -> int:
        """The rank that runs a stage of a micro-batch."""
        if self.two_way:
            return stage if 2 * micro_batch < self.micro_batches else self.ranks - 1 - stage
        return stage % self.ranks

    def copies(self) -> Fraction:
        """How many times the ranks hold the model between them: DualPipe twice, since every stage is on two ranks."""
        return Fraction(self.ranks * self.chunks, self.stages)

    def in_flight(self, rank: int) -> Iterator[tuple[Action, InFlight]]:
        """Every action of a rank, with what is in flight while it runs, its own micro-batch included."""
        whole, weights = [0] * self.chunks, [0] * self.chunks
        for action in self.orders[rank]:
            kind, chunk = action[:2]
            whole[chunk] += kind == "F"
            yield action, InFlight(tuple(whole), tuple(weights))
            whole[chunk] -= kind in "BI"
            weights[chunk] += (kind == "I") - (kind == "W")

    def most_in_flight(self, rank: int) -> int:
        """The most micro-batches in flight on a rank, each counted once in every chunk that has it."""
        return max(accumulate(map(_STEPS.__getitem__, [action[0] for action in self.orders[rank]])))

    def fullest(
        self, rank: int, whole: Sequence[int] | None = None, weights: Sequence[int] | None = None
    ) -> tuple[int, InFlight]:
        """The moment at which what is in flight on a rank takes the most: how much, and what is in flight then.

        whole: what a micro-batch in flight takes in each chunk; 1 by default. weights: what it takes when only the
        backward pass of the weights is left; as much as before by default.
        """
        whole = (1,) * self.chunks if whole is None else whole
        weights = whole if weights is None else weights
        steps: dict[tuple[str, int], int] = {}
        for chunk, (all_, rest) in enumerate(zip(whole, weights, strict=True)):
            steps |= {("F", chunk): all_, ("B", chunk): -all_, ("I", chunk): rest - all_, ("W", chunk): -rest}
        order = [action[:2] for action in self.orders[rank]]
        course = list(accumulate(map(steps.__getitem__, order)))
        most = max(course)
        done = Counter(order[: course.index(most) + 1])
        chunks = range(self.chunks)
        return most, InFlight(
            tuple(done["F", chunk] - done["B", chunk] - done["I", chunk] for chunk in chunks),
            tuple(done["I", chunk] - done["W", chunk] for chunk in chunks),
        )


_STEPS = {"F": 1, "B": -1, "I": 0, "W": -1}
"""How an action changes the number of micro-batches in flight."""


def schedule_of(layout: Layout) -> Schedule:
    """The schedule that a layout runs: 1F1B with several chunks a rank is the interleaved one."""
    return "interleaved" if layout.schedule == "1f1b" and layout.vpp > 1 else layout.schedule


def pipeline(layout: Layout, micro_batches: int, group: int | None = None) -> Pipeline:
    """The orders of a layout's schedule; without a pipeline, micro-batches run one by one.

    group: of an interleaved schedule, the micro-batches that run through a chunk before it is the next chunk's turn; as
    many as ranks by default (Megatron's microbatch_group_size_per_vp_stage).
    Raises `InputError` for a number of micro-batches that the schedule does not take.
    """
    check(layout, micro_batches, group)
    p, v, m = layout.pp, layout.vpp, micro_batches
    schedule = schedule_of(layout)
    if p == 1:
        return Pipeline(1, 1, m, (tuple(_alternating(_passes("F", m), _passes("B", m), 0)),))
    if schedule == "dualpipe":
        return Pipeline(p, 2, m, tuple(_dualpipe(p, m, rank) for rank in range(p)), two_way=True)
    if schedule == "zb-h1":
        return Pipeline(p, 1, m, tuple(_zb_h1(p, m, rank) for rank in range(p)))
    if schedule == "1f1b":
        forwards, backwards = _passes("F", m), _passes("B", m)
        return Pipeline(p, 1, m, tuple(tuple(_alternating(forwards, backwards, p - 1 - rank)) for rank in range(p)))
    group = p if group is None else group
    forwards, backwards = _interleaved("F", v, m, group), _interleaved("B", v, m, group)
    warmups = ((v - 1) * group + 2 * (p - 1 - rank) for rank in range(p))
    return Pipeline(p, v, m, tuple(tuple(_alternating(forwards, backwards, warmup)) for warmup in warmups))


def check(layout: Layout, micro_batches: int, group: int | None = None) -> None:
    """Raises `InputError` as `pipeline` does, in less time."""
    if micro_batches < 1:
        raise InputError(f"--num-microbatches: {micro_batches}; expected a positive whole number")
    schedule = schedule_of(layout)
    if layout.pp > 1 and schedule == "dualpipe":
        _dualpipe_takes(layout.pp, micro_batches)
    elif layout.pp > 1 and schedule == "interleaved":
        _interleaved_takes(layout.pp, micro_batches, layout.pp if group is None else group)


def torch_group(ranks: int, micro_batches: int) -> int:
    """The group with which `pipeline` gives the order of torch's ScheduleInterleaved1F1B.

    torch makes as many groups as fit and asks that they are equal, so it also takes 10 micro-batches on 4 ranks.
    """
    return micro_batches // max(1, micro_batches // ranks)


# --- orders -----------------------------------------------------------------------------------------------------------


def _passes(kind: Kind, micro_batches: int) -> list[Action]:
    """A pass of every micro-batch through one chunk."""
    return [Action(kind, 0, i) for i in range(micro_batches)]


def _alternating(forwards: list[Action], backwards: list[Action], warmup: int) -> Iterator[Action]:
    """Forward passes to warm up, then a forward and a backward pass in turns, then the other backward passes."""
    steady = max(0, len(forwards) - warmup)
    return chain(
        forwards[:warmup],
        chain.from_iterable(zip(forwards[warmup:], backwards[:steady], strict=True)),
        backwards[steady:],
    )


def _interleaved(kind: Kind, chunks: int, micro_batches: int, group: int) -> list[Action]:
    """Groups of micro-batches through all chunks: forward from the first chunk, backward from the last."""
    places = range(chunks) if kind == "F" else range(chunks - 1, -1, -1)
    return [
        Action(kind, chunk, i)
        for start in range(0, micro_batches, group)
        for chunk in places
        for i in range(start, min(start + group, micro_batches))
    ]


def _interleaved_takes(ranks: int, micro_batches: int, group: int) -> None:
    """Raises `InputError` where Megatron does: a group shorter than the pipeline would leave ranks waiting."""
    if group < ranks:
        raise InputError(
            f"--microbatch-group-size-per-virtual-pipeline-stage: {group}; expected at least as many as --pp {ranks}"
        )
    left = micro_batches % group
    if micro_batches < group or 0 < left < ranks:
        above = micro_batches - left + group
        fit = f"{above - group} or {above}" if above > group else str(above)
        raise InputError(
            f"--num-microbatches: {micro_batches}; an interleaved schedule (--vpp) takes groups of {group} "
            f"micro-batches; expected a multiple of {group}, such as {fit}, or no --vpp"
        )


def _zb_h1(ranks: int, micro_batches: int, rank: int) -> Order:
    """1F1B with the backward pass of the weights as many micro-batches later as ranks come before."""
    p, m = ranks, micro_batches
    warmup = min(p - 1 - rank, m)
    forwards, inputs, weights = (_passes(kind, m) for kind in ("F", "I", "W"))
    order = forwards[:warmup]
    for i in range(m):
        order += forwards[warmup + i : warmup + i + 1]
        order.append(inputs[i])
        if i >= rank:
            order.append(weights[i - rank])
    return tuple(order + weights[max(0, m - rank) :])


def _dualpipe_takes(ranks: int, micro_batches: int) -> None:
    """Raises `InputError` where `DualPipe.step` does."""
    if micro_batches < 2 * ranks or micro_batches % 2:
        raise InputError(
            f"--num-microbatches: {micro_batches}; --schedule dualpipe takes an even number of at least twice --pp; "
            f"expected {max(2 * ranks, micro_batches + micro_batches % 2)}, or another such number"
        )


def _dualpipe(ranks: int, micro_batches: int, rank: int) -> Order:
    """The eight steps of `DualPipe.step`; 0 is the direction in which a rank is nearer to the entrance, 1 the other."""
    half, near, m = ranks // 2, min(rank, ranks - 1 - rank), micro_batches // 2
    far, middle = half - 1 - near, near == half - 1
    order: list[Action] = []
    counts: Counter[tuple[Kind, int]] = Counter()
    late: list[Action] = []  # backward passes of weights, first in first out

    def run(kind: Kind, direction: int, overlapped: bool = False) -> None:
        chunk = direction ^ (rank >= half)
        passed: Kind = "F" if kind == "F" else "B"
        i = counts[passed, chunk]
        counts[passed, chunk] += 1
        order.append(Action(kind, chunk, i + chunk * m, overlapped))
        if kind == "I":
            late.append(Action("W", chunk, i + chunk * m))

    def pair(forward: int, backward: int) -> None:
        run("F", forward, overlapped=True)
        run("B", backward)

    for _ in range(2 * far):  # step 1
        run("F", 0)
    for _ in range(near + 1):  # step 2
        run("F", 0)
        run("F", 1)
    for _ in range(far):  # step 3
        run("I", 1)
        order.append(late.pop(0))
        run("F", 1)
    for i in range(m - ranks + near + 1):  # step 4, the main one
        if i == 0 and middle:  # "we don't overlap these two chunks to further reduce bubble size"
            run("F", 0)
            run("B", 1)
        else:
            pair(0, 1)
        pair(1, 0)
    for _ in range(far):  # step 5
        run("B", 1)
        pair(1, 0)
    split = near + 1  # step 6: the backward passes of its second half leave those of the weights for later
    for i in range(2 * split):
        run("I" if i >= split else "B", 1 - i % 2)
    for _ in range(far):  # step 7
        order.append(late.pop(0))
        run("I", 0)
    return tuple(order + late)  # step 8


# --- time -------------------------------------------------------------------------------------------------------------


class Costs(NamedTuple):
    """How long a pass through one chunk takes, in any unit; equal for all chunks.

    forward, backward_inputs, backward_weights: 1 by default, so a whole backward pass takes 2.
    send: from rank to rank, 0 by default.
    overlapped: a forward and a backward pass that run at once; by default as long as one after the other.
    """

    forward: float = 1
    backward_inputs: float = 1
    backward_weights: float = 1
    send: float = 0
    overlapped: float | None = None

    def of(self, kind: Kind) -> float:
        """How long an action of that kind takes alone."""
        inputs, weights = self.backward_inputs, self.backward_weights
        return {"F": self.forward, "B": inputs + weights, "I": inputs, "W": weights}[kind]

    def pair(self) -> float:
        """How long a forward and a backward pass that overlap take together."""
        return self.of("F") + self.of("B") if self.overlapped is None else self.overlapped


class Span(NamedTuple):
    """An action and its time."""

    action: Action
    start: float
    end: float


class Deadlock(ValueError):
    """Orders in which ranks wait for one another for ever, or in which an action comes twice."""


@dataclass(frozen=True)
class Timetable:
    """What runs when.

    spans: of each rank, in order. outputs_sent, gradients_sent: by each rank to another, one for each micro-batch.
    """

    pipeline: Pipeline
    costs: Costs
    spans: tuple[tuple[Span, ...], ...]
    outputs_sent: tuple[int, ...]
    gradients_sent: tuple[int, ...]

    @property
    def time(self) -> float:
        """From the first action of any rank to the end of the last."""
        return max(spans[-1].end for spans in self.spans)

    def busy(self, rank: int) -> float:
        """For how long a rank runs something."""
        spans = self.spans[rank]
        return sum(span.end - span.start for span in spans if not span.action.overlapped)

    @property
    def idle(self) -> float:
        """For how long the ranks wait, on average, from the start of the step to its end."""
        ranks = self.pipeline.ranks
        return self.time - sum(self.busy(rank) for rank in range(ranks)) / ranks

    @property
    def bubble(self) -> float:
        """The share of the time that ranks are idle."""
        return self.idle / self.time

    @property
    def sends(self) -> int:
        """All that ranks send to one another: outputs, and gradients of outputs."""
        return sum(self.outputs_sent) + sum(self.gradients_sent)


def timetable(pipeline: Pipeline, costs: Costs | None = None) -> Timetable:
    """Runs the orders: every action starts when its rank is free and all that it needs is there.

    Raises `Deadlock` where ranks wait for ever.
    """
    run = _Run(pipeline, costs or Costs())
    while run.ready:
        run.advance(run.ready.pop())
    for rank, order in enumerate(pipeline.orders):
        if len(run.spans[rank]) < len(order):
            raise Deadlock(f"rank {rank} waits for ever to run {order[len(run.spans[rank])]}")
    outputs, gradients = tuple(run.sent["F"]), tuple(run.sent["B"])
    return Timetable(pipeline, run.costs, tuple(map(tuple, run.spans)), outputs, gradients)


_Passed: TypeAlias = tuple[Kind, int]
"""A pass through a stage: which, and stage · micro-batches + micro-batch."""


class _Run:
    """A step while it runs.

    ready: ranks that may go on. free: when each rank has ended its last action. ended, arrives: when a pass has ended,
    and when the rank of the next stage has its result. waiting: what a rank waits for → the rank.
    """

    def __init__(self, pipeline: Pipeline, costs: Costs) -> None:
        self.pipeline, self.costs = pipeline, costs
        ranks, self.m = pipeline.ranks, pipeline.micro_batches
        self.last = (pipeline.stages - 1) * self.m
        self.place = [[pipeline.stage(r, chunk) * self.m for chunk in range(pipeline.chunks)] for r in range(ranks)]
        self.lasts = {kind: costs.of(kind) for kind in get_args(Kind)}
        self.spans: list[list[Span]] = [[] for _ in range(ranks)]
        self.sent: dict[Kind, list[int]] = {"F": [0] * ranks, "B": [0] * ranks}
        self.ready, self.free = list(range(ranks)), [0.0] * ranks
        self.ended: dict[_Passed, float] = {}
        self.arrives: dict[_Passed, float] = {}
        self.waiting: dict[_Passed, int] = {}

    def advance(self, rank: int) -> None:
        """Runs what a rank can run, until it must wait for another."""
        order, at = self.pipeline.orders[rank], len(self.spans[rank])
        while at < len(order):
            together = order[at : at + 1 + order[at].overlapped]
            start = self.free[rank]
            for action in together:
                found = self.there(action, rank)
                if isinstance(found, tuple):
                    self.waiting[found] = rank
                    return
                start = max(start, found)
            end = start + (self.costs.pair() if len(together) > 1 else self.lasts[together[0].kind])
            self.free[rank] = end
            for action in together:
                self.finish(action, rank, start, end)
            at += len(together)

    def there(self, action: Action, rank: int) -> float | _Passed:
        """When all that an action needs is there, or what is not there yet."""
        kind, place = action.kind, self.place[rank][action.chunk]
        own = place + action.micro_batch
        need: _Passed
        if kind == "F":  # the output of the stage before
            need, times = ("F", own - self.m), self.arrives
            if place == 0:
                return 0.0
        elif kind == "W":
            need, times = ("I", own), self.ended
        else:  # its own forward pass, and the gradient from the stage after
            need, times = ("F", own), self.ended
            if place < self.last and need in times:
                need, times = ("B", own + self.m), self.arrives
        found = times.get(need)
        return need if found is None else found

    def finish(self, action: Action, rank: int, start: float, end: float) -> None:
        """Writes an action down, sends what it computed, and wakes the rank that waits for it."""
        place = self.place[rank][action.chunk]
        own = place + action.micro_batch
        if (action.kind, own) in self.ended:
            raise Deadlock(f"rank {rank} runs {action} twice")
        self.ended[action.kind, own] = end
        self.spans[rank].append(Span(action, start, end))
        if action.kind == "W":
            return
        passed: Kind = "F" if action.kind == "F" else "B"
        to = place + self.m if passed == "F" else place - self.m
        away = 0 <= to <= self.last and self.pipeline.rank_of(to // self.m, action.micro_batch) != rank
        self.arrives[passed, own] = end + self.costs.send if away else end
        self.sent[passed][rank] += away
        other = self.waiting.pop((passed, own), None)
        if other is not None:
            self.ready.append(other)
