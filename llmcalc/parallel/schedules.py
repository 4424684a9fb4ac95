"""Pipeline schedules: the order of each rank's passes, the micro-batches in flight, and the idle time (bubble).

Sources of the orders:
1F1B: Narayanan 2019 (PipeDream) and 2021 (arXiv:2104.04473), §2.2.1; Megatron-LM, core/pipeline_parallel/schedules.py,
    `forward_backward_pipelining_without_interleaving`.
interleaved: Narayanan 2021, §2.2.2; the same file, `get_pp_rank_microbatches`, `get_schedule_table`,
    `forward_backward_pipelining_with_interleaving`.
ZB-H1: Qi 2023 (arXiv:2401.10241), §2.1 and figure 3; torch's ScheduleInterleavedZeroBubble with one stage a rank is the
    same. (The variant of sail-sg/zero-bubble-pipeline-parallelism, branch zb-h1-quick-start, divides the backward pass
    only where it must; this module does not build it.)
DualPipe: DeepSeek-V3 (arXiv:2412.19437), §3.2.1; deepseek-ai/DualPipe, dualpipe/dualpipe.py, `DualPipe.step`.

Nothing here is a closed form: micro-batches in flight are counted along the orders, and `timetable` runs the orders,
each action after its inputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Literal, NamedTuple, TypeAlias, get_args

from ..errors import InputError
from ..frozen import frozen
from .layout import Layout, Schedule

PassKind: TypeAlias = Literal["F", "B", "I", "W"]
"""Kind of pass, in torch's letters: forward, whole backward, backward of inputs, backward of weights."""


class PassAction(NamedTuple):
    """One pass of a micro-batch through a chunk on a rank.

    pass_kind: the kind of pass.
    chunk_index: the index of the chunk on its rank.
    micro_batch: the index of the micro-batch in the step.
    is_overlapped: whether it runs at the same time as the next action (DualPipe's pairs).
    """

    pass_kind: PassKind
    chunk_index: int
    micro_batch: int
    is_overlapped: bool = False

    def __str__(self) -> str:
        return f"{self.pass_kind} of micro-batch {self.micro_batch} in chunk {self.chunk_index}"


ActionOrder: TypeAlias = tuple[PassAction, ...]


class InFlightCounts(NamedTuple):
    """The numbers of micro-batches in flight on a rank, per chunk.

    awaiting_backward: per chunk, the micro-batches whose backward pass has not run.
    awaiting_weight_gradients: per chunk, the micro-batches of which only the backward pass of the weights is left.
    """

    awaiting_backward: tuple[int, ...]
    awaiting_weight_gradients: tuple[int, ...]

    @property
    def total(self) -> int:
        """The number of micro-batches in flight, over all chunks."""
        return sum(self.awaiting_backward) + sum(self.awaiting_weight_gradients)


@frozen
class Pipeline:
    """The order of actions of every rank in a schedule.

    ranks: number of ranks.
    chunk_count: chunks of layers per rank.
    micro_batches: micro-batches per step.
    actions_by_rank: per rank, its actions.
    is_bidirectional: whether micro-batches enter at both ends (DualPipe). The first half of them enters at rank 0 and
        passes the ranks' chunks 0; the other half enters at the last rank and passes the chunks 1.
    """

    ranks: int
    chunk_count: int
    micro_batches: int
    actions_by_rank: tuple[ActionOrder, ...]
    is_bidirectional: bool = False

    @property
    def stages(self) -> int:
        """The number of stages that a micro-batch passes through."""
        return self.ranks if self.is_bidirectional else self.ranks * self.chunk_count

    def stage(self, rank: int, chunk_index: int) -> int:
        """Returns the stage index of a rank's chunk in the order of a micro-batch."""
        if self.is_bidirectional:
            return self.ranks - 1 - rank if chunk_index else rank
        return chunk_index * self.ranks + rank

    def rank_of(self, stage_index: int, micro_batch: int) -> int:
        """Returns the rank that runs a stage for a micro-batch."""
        if self.is_bidirectional:
            return stage_index if 2 * micro_batch < self.micro_batches else self.ranks - 1 - stage_index
        return stage_index % self.ranks

    def in_flight(self, rank: int) -> Iterator[tuple[PassAction, InFlightCounts]]:
        """Yields every action of a rank, with the micro-batches in flight."""
        awaiting_backward, awaiting_weight_gradients = [0] * self.chunk_count, [0] * self.chunk_count
        for action in self.actions_by_rank[rank]:
            pass_kind, chunk_index = action[:2]
            awaiting_backward[chunk_index] += pass_kind == "F"
            yield action, InFlightCounts(tuple(awaiting_backward), tuple(awaiting_weight_gradients))
            awaiting_backward[chunk_index] -= pass_kind in "BI"
            awaiting_weight_gradients[chunk_index] += (pass_kind == "I") - (pass_kind == "W")

    def most_in_flight(self, rank: int) -> int:
        """Returns the largest number of micro-batches in flight on a rank, over all chunks."""
        return max(
            accumulate(map(_IN_FLIGHT_CHANGES.__getitem__, [action[0] for action in self.actions_by_rank[rank]]))
        )

    def peak_in_flight(
        self, rank: int, awaiting_backward: Sequence[int] | None = None, weights: Sequence[int] | None = None
    ) -> tuple[int, InFlightCounts]:
        """Returns a rank's largest total weight of micro-batches in flight, and their number per chunk at that point.

        awaiting_backward: per chunk, the weight of a micro-batch in flight, such as its bytes; 1 by default.
        weights: per chunk, the weight when only the backward pass of the weights is left; by default the other one.
        """
        awaiting_backward = (1,) * self.chunk_count if awaiting_backward is None else awaiting_backward
        weights = awaiting_backward if weights is None else weights
        change_by_action: dict[tuple[str, int], int] = {}
        for chunk_index, (chunk_weight, awaiting_weight_gradients) in enumerate(
            zip(awaiting_backward, weights, strict=True)
        ):
            change_by_action |= {
                ("F", chunk_index): chunk_weight,
                ("B", chunk_index): -chunk_weight,
                ("I", chunk_index): awaiting_weight_gradients - chunk_weight,
                ("W", chunk_index): -awaiting_weight_gradients,
            }
        rank_passes = [action[:2] for action in self.actions_by_rank[rank]]
        weights_in_flight = list(accumulate(map(change_by_action.__getitem__, rank_passes)))
        peak_weight = max(weights_in_flight)
        pass_counts = Counter(rank_passes[: weights_in_flight.index(peak_weight) + 1])
        chunk_indices = range(self.chunk_count)
        return peak_weight, InFlightCounts(
            tuple(
                pass_counts["F", index] - pass_counts["B", index] - pass_counts["I", index] for index in chunk_indices
            ),
            tuple(pass_counts["I", chunk_index] - pass_counts["W", chunk_index] for chunk_index in chunk_indices),
        )


_IN_FLIGHT_CHANGES = {"F": 1, "B": -1, "I": 0, "W": -1}
"""Kind of pass → the change of a rank's number of micro-batches in flight."""


def effective_schedule(layout: Layout) -> Schedule:
    """Returns the schedule of a layout; 1F1B with several chunks per rank becomes the interleaved schedule."""
    return "interleaved" if layout.schedule == "1f1b" and layout.vpp > 1 else layout.schedule


def pipeline(layout: Layout, micro_batches: int, group_size: int | None = None) -> Pipeline:
    """Returns the actions of a layout's schedule in order. Without a pipeline, micro-batches run one by one.

    group_size: micro-batches that pass a chunk before the next chunk's turn in an interleaved schedule; by default the
        number of ranks (Megatron's microbatch_group_size_per_vp_stage).
    Raises `InputError` for a number of micro-batches that the schedule does not take.
    """
    check_micro_batches(layout, micro_batches, group_size)
    pp, vpp, micro_batch_count = layout.pp, layout.vpp, micro_batches
    schedule_name = effective_schedule(layout)
    if pp == 1:
        return Pipeline(
            1,
            1,
            micro_batch_count,
            (
                tuple(
                    _alternating_passes(
                        _passes_in_order("F", micro_batch_count), _passes_in_order("B", micro_batch_count), 0
                    )
                ),
            ),
        )
    if schedule_name == "dualpipe":
        return Pipeline(
            pp,
            2,
            micro_batch_count,
            tuple(_dualpipe_actions(pp, micro_batch_count, rank) for rank in range(pp)),
            is_bidirectional=True,
        )
    if schedule_name == "zb-h1":
        return Pipeline(
            pp, 1, micro_batch_count, tuple(_zero_bubble_h1(pp, micro_batch_count, rank) for rank in range(pp))
        )
    if schedule_name == "1f1b":
        forward_passes, backward_passes = (
            _passes_in_order("F", micro_batch_count),
            _passes_in_order("B", micro_batch_count),
        )
        return Pipeline(
            pp,
            1,
            micro_batch_count,
            tuple(tuple(_alternating_passes(forward_passes, backward_passes, pp - 1 - rank)) for rank in range(pp)),
        )
    group_size = pp if group_size is None else group_size
    return Pipeline(
        pp,
        vpp,
        micro_batch_count,
        tuple(interleaved_order(pp, vpp, micro_batch_count, group_size, rank) for rank in range(pp)),
    )


def check_micro_batches(layout: Layout, micro_batches: int, group_size: int | None = None) -> None:
    """Raises `InputError` for a number of micro-batches that the schedule does not support."""
    if micro_batches < 1:
        raise InputError(f"--num-microbatches: {micro_batches}; expected a positive whole number")
    schedule_name = effective_schedule(layout)
    if layout.pp > 1 and schedule_name == "dualpipe":
        _check_dualpipe(layout.pp, micro_batches)
    elif layout.pp > 1 and schedule_name == "interleaved":
        _check_interleaved(layout.pp, micro_batches, layout.pp if group_size is None else group_size)


def torch_group_size(rank_count: int, micro_batches: int) -> int:
    """Returns the group size with which `pipeline` reproduces the order of torch's ScheduleInterleaved1F1B.

    torch makes as many groups as fit and asks that they are equal, so it also takes 10 micro-batches on 4 ranks.
    """
    return micro_batches // max(1, micro_batches // rank_count)


# --- orders -----------------------------------------------------------------------------------------------------------


def _passes_in_order(pass_kind: PassKind, micro_batches: int) -> list[PassAction]:
    """Returns the passes of every micro-batch through one chunk."""
    return [PassAction(pass_kind, 0, micro_batch) for micro_batch in range(micro_batches)]


def _alternating_passes(
    forward_passes: list[PassAction], backward_passes: list[PassAction], warmup_count: int
) -> Iterator[PassAction]:
    """Returns warm-up forward passes, alternating forward and backward passes, then the remaining backward passes."""
    alternating_count = max(0, len(forward_passes) - warmup_count)
    return chain(
        forward_passes[:warmup_count],
        chain.from_iterable(zip(forward_passes[warmup_count:], backward_passes[:alternating_count], strict=True)),
        backward_passes[alternating_count:],
    )


def interleaved_order(rank_count: int, chunk_count: int, micro_batches: int, group_size: int, rank: int) -> ActionOrder:
    """Returns the passes of one rank in the order of an interleaved schedule."""
    forward_passes = _interleaved_passes("F", chunk_count, micro_batches, group_size)
    backward_passes = _interleaved_passes("B", chunk_count, micro_batches, group_size)
    warmup_count = (chunk_count - 1) * group_size + 2 * (rank_count - 1 - rank)
    return tuple(_alternating_passes(forward_passes, backward_passes, warmup_count))


@lru_cache(maxsize=4)
def _interleaved_passes(pass_kind: PassKind, chunk_count: int, micro_batches: int, group_size: int) -> list[PassAction]:
    """Returns passes by groups of micro-batches: forward from the first chunk, backward from the last."""
    chunk_order = range(chunk_count) if pass_kind == "F" else range(chunk_count - 1, -1, -1)
    return [
        PassAction(pass_kind, chunk_index, micro_batch)
        for first_micro_batch in range(0, micro_batches, group_size)
        for chunk_index in chunk_order
        for micro_batch in range(first_micro_batch, min(first_micro_batch + group_size, micro_batches))
    ]


def _check_interleaved(rank_count: int, micro_batches: int, group_size: int) -> None:
    """Raises `InputError` for micro-batch groups smaller than the number of pipeline ranks, as Megatron-LM does."""
    if group_size < rank_count <= micro_batches:
        raise InputError(
            f"--microbatch-group-size-per-virtual-pipeline-stage: {group_size}; expected at least as many as --pp "
            f"{rank_count}"
        )
    group_size = max(group_size, rank_count)
    remainder = micro_batches % group_size
    if micro_batches < group_size or 0 < remainder < rank_count:
        next_multiple = micro_batches - remainder + group_size
        valid_counts_text = (
            f"{next_multiple - group_size} or {next_multiple}" if next_multiple > group_size else str(next_multiple)
        )
        raise InputError(
            f"--num-microbatches: {micro_batches}; an interleaved schedule (--vpp) takes groups of {group_size} "
            f"micro-batches; expected a multiple of {group_size}, such as {valid_counts_text}, or no --vpp"
        )


def _zero_bubble_h1(ranks: int, micro_batches: int, rank: int) -> ActionOrder:
    """Returns a rank's passes in the ZB-H1 schedule: 1F1B with weight-gradient passes delayed by `rank` passes."""
    rank_count, micro_batch_count = ranks, micro_batches
    warmup_count = min(rank_count - 1 - rank, micro_batch_count)
    forward_passes, input_passes, weight_passes = (
        _passes_in_order(pass_kind, micro_batch_count) for pass_kind in ("F", "I", "W")
    )
    rank_actions = forward_passes[:warmup_count]
    for pass_index in range(micro_batch_count):
        rank_actions += forward_passes[warmup_count + pass_index : warmup_count + pass_index + 1]
        rank_actions.append(input_passes[pass_index])
        if pass_index >= rank:
            rank_actions.append(weight_passes[pass_index - rank])
    return tuple(rank_actions + weight_passes[max(0, micro_batch_count - rank) :])


def _check_dualpipe(rank_count: int, micro_batches: int) -> None:
    """Raises `InputError` for numbers of ranks or micro-batches that `DualPipe.step` does not support."""
    if micro_batches < 2 * rank_count or micro_batches % 2:
        raise InputError(
            f"--num-microbatches: {micro_batches}; --schedule dualpipe takes an even number of at least twice --pp; "
            f"expected {max(2 * rank_count, micro_batches + micro_batches % 2)}, or another such number"
        )


def _dualpipe_actions(rank_count: int, micro_batches: int, rank: int) -> ActionOrder:
    """Returns the actions of `DualPipe.step`'s eight phases. In direction 0 the rank is nearer to the entrance."""
    half_ranks, distance_to_end, half_microbatches = (
        rank_count // 2,
        min(rank, rank_count - 1 - rank),
        micro_batches // 2,
    )
    distance_to_middle, is_middle = half_ranks - 1 - distance_to_end, distance_to_end == half_ranks - 1
    rank_actions: list[PassAction] = []
    counts_by_pass: Counter[tuple[PassKind, int]] = Counter()
    delayed_actions: list[PassAction] = []  # backward passes of weights, first in first out

    def add_action(action_kind: PassKind, direction: int, is_overlapped: bool = False) -> None:
        chunk_index = direction ^ (rank >= half_ranks)
        pass_kind: PassKind = "F" if action_kind == "F" else "B"
        pass_index = counts_by_pass[pass_kind, chunk_index]
        counts_by_pass[pass_kind, chunk_index] += 1
        rank_actions.append(
            PassAction(action_kind, chunk_index, pass_index + chunk_index * half_microbatches, is_overlapped)
        )
        if action_kind == "I":
            delayed_actions.append(PassAction("W", chunk_index, pass_index + chunk_index * half_microbatches))

    def add_overlapped_passes(forward_direction: int, backward_direction: int) -> None:
        add_action("F", forward_direction, is_overlapped=True)
        add_action("B", backward_direction)

    for _ in range(2 * distance_to_middle):  # step 1
        add_action("F", 0)
    for _ in range(distance_to_end + 1):  # step 2
        add_action("F", 0)
        add_action("F", 1)
    for _ in range(distance_to_middle):  # step 3
        add_action("I", 1)
        rank_actions.append(delayed_actions.pop(0))
        add_action("F", 1)
    for i in range(half_microbatches - rank_count + distance_to_end + 1):  # step 4, the main one
        if i == 0 and is_middle:  # "we don't overlap these two chunks to further reduce bubble size"
            add_action("F", 0)
            add_action("B", 1)
        else:
            add_overlapped_passes(0, 1)
        add_overlapped_passes(1, 0)
    for _ in range(distance_to_middle):  # step 5
        add_action("B", 1)
        add_overlapped_passes(1, 0)
    passes_before_split = distance_to_end + 1  # step 6: backward passes of the second half delay those of the weights
    for i in range(2 * passes_before_split):
        add_action("I" if i >= passes_before_split else "B", 1 - i % 2)
    for _ in range(distance_to_middle):  # step 7
        rank_actions.append(delayed_actions.pop(0))
        add_action("I", 0)
    return tuple(rank_actions + delayed_actions)  # step 8


# --- time -------------------------------------------------------------------------------------------------------------


class PassDurations(NamedTuple):
    """The durations of one chunk's passes in any unit, equal for all chunks.

    forward, backward_inputs, backward_weights: 1 by default, so a whole backward pass takes 2.
    send_time: duration of a message between ranks, 0 by default.
    overlapped_time: duration of a forward and a backward pass at once; by default as long as one after the other.
    """

    forward: float = 1
    backward_inputs: float = 1
    backward_weights: float = 1
    send_time: float = 0
    overlapped_time: float | None = None

    def duration(self, pass_kind: PassKind) -> float:
        """Returns the duration of a pass of this kind through a chunk."""
        input_duration, weight_duration = self.backward_inputs, self.backward_weights
        return {"F": self.forward, "B": input_duration + weight_duration, "I": input_duration, "W": weight_duration}[
            pass_kind
        ]

    def overlapped_duration(self) -> float:
        """Returns the duration of a forward and a backward pass that overlap."""
        return self.duration("F") + self.duration("B") if self.overlapped_time is None else self.overlapped_time


class ActionSpan(NamedTuple):
    """The start and end time of an action of a rank."""

    action: PassAction
    start_time: float
    end_time: float


class Deadlock(ValueError):
    """The error raised for a schedule in which ranks wait for each other forever or an action is repeated."""


@frozen
class Timetable:
    """The start and end times of all actions in a step.

    spans_by_rank: per rank, its actions in order.
    outputs_sent, gradients_sent: per rank, the number of messages that it sends to other ranks.
    """

    pipeline: Pipeline
    pass_durations: PassDurations
    spans_by_rank: tuple[tuple[ActionSpan, ...], ...]
    outputs_sent: tuple[int, ...]
    gradients_sent: tuple[int, ...]

    @property
    def total_time(self) -> float:
        """The duration of the step, from the first action to the end of the last, in the unit of `PassDurations`."""
        return max(action_spans[-1].end_time for action_spans in self.spans_by_rank)

    def busy_time(self, rank: int) -> float:
        """Returns the time during which a rank runs actions."""
        action_spans = self.spans_by_rank[rank]
        return sum(span.end_time - span.start_time for span in action_spans if not span.action.is_overlapped)

    @property
    def idle_time(self) -> float:
        """Returns the average time during which a rank waits."""
        rank_count = self.pipeline.ranks
        return self.total_time - sum(self.busy_time(rank) for rank in range(rank_count)) / rank_count

    @property
    def bubble(self) -> float:
        """Returns the fraction of the step during which ranks are idle."""
        return self.idle_time / self.total_time

    @property
    def message_count(self) -> int:
        """The number of messages between ranks, for stage outputs and their gradients."""
        return sum(self.outputs_sent) + sum(self.gradients_sent)


def timetable(pipeline: Pipeline, pass_durations: PassDurations | None = None) -> Timetable:
    """Computes the times of all actions. An action starts when the rank is free and the inputs have arrived.

    Raises `Deadlock` where ranks wait for ever.
    """
    simulation = _PipelineSimulation(pipeline, pass_durations or PassDurations())
    while simulation.ready_ranks:
        simulation.advance(simulation.ready_ranks.pop())
    for rank, rank_actions in enumerate(pipeline.actions_by_rank):
        if len(simulation.spans_by_rank[rank]) < len(rank_actions):
            raise Deadlock(f"rank {rank} waits for ever to run {rank_actions[len(simulation.spans_by_rank[rank])]}")
    outputs_sent, gradients_sent = tuple(simulation.sent_counts["F"]), tuple(simulation.sent_counts["B"])
    return Timetable(
        pipeline, simulation.pass_durations, tuple(map(tuple, simulation.spans_by_rank)), outputs_sent, gradients_sent
    )


StagePass: TypeAlias = tuple[PassKind, int]
"""A pass of a micro-batch through a stage: the kind of pass, and the number stage · micro-batches + micro-batch."""


class _PipelineSimulation:
    """The state of a simulated pipeline step.

    micro_batches: micro-batches of the step.
    last_stage: the index of the last stage's first pass.
    first_pass: per rank and chunk, the index of the chunk's first pass.
    durations: per kind, how long an action takes alone.
    spans_by_rank: per rank, the actions that have run.
    sent_counts: per kind and rank, the messages sent to other ranks.
    ready_ranks: ranks that may go on.
    free_times: per rank, the time at which its last action ended.
    end_times: pass → the time at which it ended.
    arrival_times: pass → the time at which the next stage's rank has its result.
    waiting_ranks: pass → the rank that waits for it.
    """

    def __init__(self, pipeline: Pipeline, pass_durations: PassDurations) -> None:
        self.pipeline, self.pass_durations = pipeline, pass_durations
        rank_count, self.micro_batches = pipeline.ranks, pipeline.micro_batches
        self.last_stage = (pipeline.stages - 1) * self.micro_batches
        self.first_pass = [
            [pipeline.stage(rank, chunk_index) * self.micro_batches for chunk_index in range(pipeline.chunk_count)]
            for rank in range(rank_count)
        ]
        self.durations = {pass_kind: pass_durations.duration(pass_kind) for pass_kind in get_args(PassKind)}
        self.spans_by_rank: list[list[ActionSpan]] = [[] for _ in range(rank_count)]
        self.sent_counts: dict[PassKind, list[int]] = {"F": [0] * rank_count, "B": [0] * rank_count}
        self.ready_ranks, self.free_times = list(range(rank_count)), [0.0] * rank_count
        self.end_times: dict[StagePass, float] = {}
        self.arrival_times: dict[StagePass, float] = {}
        self.waiting_ranks: dict[StagePass, int] = {}

    def advance(self, rank: int) -> None:
        """Runs a rank's actions until it must wait for another rank."""
        rank_actions, next_index = self.pipeline.actions_by_rank[rank], len(self.spans_by_rank[rank])
        while next_index < len(rank_actions):
            overlapped_actions = rank_actions[next_index : next_index + 1 + rank_actions[next_index].is_overlapped]
            start_time = self.free_times[rank]
            for action in overlapped_actions:
                required_pass, ready_time = self.awaited_pass(action, rank)
                if ready_time is None:
                    self.waiting_ranks[required_pass] = rank
                    return
                start_time = max(start_time, ready_time)
            end_time = start_time + (
                self.pass_durations.overlapped_duration()
                if len(overlapped_actions) > 1
                else self.durations[overlapped_actions[0].pass_kind]
            )
            self.free_times[rank] = end_time
            for action in overlapped_actions:
                self.finish(action, rank, start_time, end_time)
            next_index += len(overlapped_actions)

    def awaited_pass(self, action: PassAction, rank: int) -> tuple[StagePass, float | None]:
        """Returns the pass whose result an action needs, and the time when the result arrives (None if unknown)."""
        pass_kind, first_pass = action.pass_kind, self.first_pass[rank][action.chunk_index]
        pass_index = first_pass + action.micro_batch
        required_pass: StagePass
        if pass_kind == "F":  # the output of the previous stage
            required_pass = ("F", pass_index - self.micro_batches)
            return required_pass, 0.0 if first_pass == 0 else self.arrival_times.get(required_pass)
        if pass_kind == "W":
            required_pass = ("I", pass_index)
            return required_pass, self.end_times.get(required_pass)
        required_pass = ("F", pass_index)  # the forward pass of this stage, and the gradient from the next stage
        if first_pass < self.last_stage and required_pass in self.end_times:
            required_pass = ("B", pass_index + self.micro_batches)
            return required_pass, self.arrival_times.get(required_pass)
        return required_pass, self.end_times.get(required_pass)

    def finish(self, action: PassAction, rank: int, start_time: float, end_time: float) -> None:
        """Records a finished action, sends its result, and wakes the waiting rank."""
        first_pass = self.first_pass[rank][action.chunk_index]
        pass_index = first_pass + action.micro_batch
        if (action.pass_kind, pass_index) in self.end_times:
            raise Deadlock(f"rank {rank} runs {action} twice")
        self.end_times[action.pass_kind, pass_index] = end_time
        self.spans_by_rank[rank].append(ActionSpan(action, start_time, end_time))
        if action.pass_kind == "W":
            return
        direction: PassKind = "F" if action.pass_kind == "F" else "B"
        receiving_pass = first_pass + self.micro_batches if direction == "F" else first_pass - self.micro_batches
        sends_result = False
        if 0 <= receiving_pass <= self.last_stage:
            sends_result = self.pipeline.rank_of(receiving_pass // self.micro_batches, action.micro_batch) != rank
        self.arrival_times[direction, pass_index] = (
            end_time + self.pass_durations.send_time if sends_result else end_time
        )
        self.sent_counts[direction][rank] += sends_result
        waiting_rank = self.waiting_ranks.pop((direction, pass_index), None)
        if waiting_rank is not None:
            self.ready_ranks.append(waiting_rank)
