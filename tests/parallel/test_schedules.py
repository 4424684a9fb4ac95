"""Schedules of pipelines: published figures, torch's own tables, and what holds for all of them.

torch's schedules are asked for their order without processes: their methods need sizes alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributed.pipelining import schedules as torch_schedules

from llmcalc.errors import InputError
from llmcalc.frameworks.fsdp2.torchtitan_file import SCHEDULES
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.schedules import (
    Deadlock,
    InFlightCounts,
    PassAction,
    PassDurations,
    Pipeline,
    Timetable,
    check_micro_batches,
    pipeline,
    timetable,
    torch_group_size,
)
from tests.samples import in_one_test


def ran(micro_batches: int, costs: PassDurations | None = None, **layout: Any) -> Timetable:
    return timetable(pipeline(Layout(**layout), micro_batches), costs)


def most(found: Pipeline) -> list[int]:
    return [found.most_in_flight(rank) for rank in range(found.ranks)]


def over_ideal(found: Any) -> float:
    """Idle time as a share of the time without any, as the papers give it: (p − 1)/m of 1F1B."""
    return float(found.idle_time / (found.total_time - found.idle_time))


def words(order: Any) -> str:
    return " ".join(f"{action.pass_kind}{action.micro_batch}" for action in order)


# --- published figures ------------------------------------------------------------------------------------------------


@in_one_test
@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 2), (4, 8), (8, 5), (8, 64)])
def test_1f1b_has_its_distance_to_the_end_in_flight(p: int, m: int) -> None:
    """Narayanan 2021, §2.2.1: at most p; the rank before the last has 2. Bubble (p − 1)/m."""
    found = ran(m, pp=p)
    assert most(found.pipeline) == [min(p - rank, m) for rank in range(p)]
    assert Fraction(found.idle_time) / m / 3 == Fraction(p - 1, m)
    assert over_ideal(found) == pytest.approx((p - 1) / m)
    assert found.bubble == pytest.approx((p - 1) / (m + p - 1))
    assert found.message_count == 2 * m * (p - 1)  # an output and a gradient across each border


def test_1f1b_of_the_paper() -> None:
    """Narayanan 2021, figure 4 (top): four devices, eight micro-batches, numbered from 1 there."""
    found = pipeline(Layout(pp=4), 8)
    assert words(found.actions_by_rank[0]) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"
    assert words(found.actions_by_rank[3]) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"


@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 4), (4, 2, 8), (4, 3, 8), (8, 4, 32)])
def test_interleaving_divides_the_bubble_by_the_chunks(p: int, v: int, m: int) -> None:
    """Narayanan 2021, §2.2.2: the bubble is (p − 1)/(m·v), and v times as much is sent.

    In flight is one more than Megatron's warm-up, (v − 1)·p + 2·(p − rank − 1) (`get_pp_rank_microbatches`).
    """
    found = ran(m, pp=p, vpp=v)
    assert over_ideal(found) == pytest.approx((p - 1) / (m * v))
    assert most(found.pipeline) == [min((v - 1) * p + 2 * (p - rank - 1) + 1, m * v) for rank in range(p)]
    assert found.message_count == 2 * m * (p * v - 1)


def test_interleaving_keeps_more_than_1f1b() -> None:
    """Korthikanti 2022, §4.2.3: a first stage with 1 + (p − 1)/(p·m) times the activations, m chunks there."""
    p, v = 8, 4
    interleaved = Fraction(pipeline(Layout(pp=p, vpp=v), 64).most_in_flight(0), v)
    assert interleaved / pipeline(Layout(pp=p), 64).most_in_flight(0) == 1 + Fraction(p - 1, p * v)


def test_groups_of_megatron() -> None:
    """The table in schedules.py, `forward_backward_pipelining_with_interleaving`: PP2 N3M5 with VP2."""
    (first, _) = pipeline(Layout(pp=2, vpp=2), 5, group_size=3).actions_by_rank
    forward = [action for action in first if action.pass_kind == "F"]
    assert [action.micro_batch for action in forward] == [0, 1, 2, 0, 1, 2, 3, 4, 3, 4]
    assert [action.chunk_index for action in forward] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]
    backward = [action for action in first if action.pass_kind == "B"]
    assert [action.chunk_index for action in backward] == [1, 1, 1, 0, 0, 0, 1, 1, 0, 0]
    assert [action.pass_kind for action in first[:6]] == [
        "F"
    ] * 6  # (2 − 1)·3 + 2·(2 − 0 − 1) = 5 to warm up, then 1F1B
    assert first[6].pass_kind == "B"


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 24)])
def test_zb_h1_keeps_what_1f1b_keeps_and_waits_a_third(p: int, m: int) -> None:
    """Qi 2023, table 2: p in flight, bubble (p − 1)·(F + B − W) beside (p − 1)·(F + B + W); §2.1: a third if all are
    equal, and as many micro-batches in flight on every worker.
    """
    found, plain = ran(m, pp=p, schedule="zb-h1"), ran(m, pp=p)
    assert most(found.pipeline) == [p] * p
    assert max(most(plain.pipeline)) == p
    assert found.idle_time * 3 == pytest.approx(plain.idle_time)
    held = [found.pipeline.peak_in_flight(rank)[1] for rank in range(p)]
    assert held == [
        InFlightCounts((p - rank,), (rank,)) for rank in range(p)
    ]  # later workers keep weights' inputs alone
    uneven = ran(m, PassDurations(4, 3, 2), pp=p, schedule="zb-h1")  # W < B < F
    assert uneven.idle_time == pytest.approx((p - 1) * (4 + 3 - 2))
    assert found.message_count == plain.message_count


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 20), (16, 32)])
def test_dualpipe_as_its_readme_has_it(p: int, m: int) -> None:
    """deepseek-ai/DualPipe, README: bubble (PP/2 − 1)·(F&B + B − 3W), 2× parameters, PP + 1 activations."""
    found = ran(m, pp=p, schedule="dualpipe")
    assert found.pipeline.ranks * found.pipeline.chunk_count == 2 * found.pipeline.stages  # two copies of the model
    assert most(found.pipeline) == [p + 1] * p
    assert found.idle_time == pytest.approx((p // 2 - 1) * ((1 + 2) + 2 - 3 * 1))
    faster = ran(m, PassDurations(4, 4, 4, overlapped_time=9), pp=p, schedule="dualpipe")  # F&B of 9 in place of 4 + 8
    idle = max(
        faster.total_time - faster.busy_time(rank) for rank in range(p)
    )  # the middle ranks; the others have fewer pairs
    assert idle == pytest.approx((p // 2 - 1) * (9 + 8 - 3 * 4))


def test_bubbles_stand_in_the_order_of_the_papers() -> None:
    """1F1B > ZB-H1 > DualPipe, and interleaving between, at equal stages and micro-batches."""
    p, m = 8, 32
    bubbles = [
        ran(m, pp=p).bubble,
        ran(m, pp=p, vpp=2).bubble,
        ran(m, pp=p, schedule="zb-h1").bubble,
        ran(m, pp=p, schedule="dualpipe").bubble,
    ]
    assert bubbles == sorted(bubbles, reverse=True)


def test_without_a_pipeline_one_at_a_time() -> None:
    found = ran(3)
    assert words(found.pipeline.actions_by_rank[0]) == "F0 B0 F1 B1 F2 B2"
    assert (found.bubble, found.message_count, found.pipeline.most_in_flight(0)) == (0, 0, 1)


# --- torch's tables ---------------------------------------------------------------------------------------------------


def asked(name: str, **sizes: int) -> Any:
    """A schedule of torch with the attributes that its order needs, and no stages."""
    cls = getattr(torch_schedules, name)
    schedule = cls.__new__(cls)
    for attribute, value in sizes.items():
        setattr(schedule, attribute, value)
    return schedule


def told(actions: Any) -> list[tuple[str, int, int]]:
    """torch's actions as (kind, stage, micro-batch), overlapped pairs one after the other, without idle slots."""
    flat = [one for action in actions if action is not None for one in (action.sub_actions or (action,))]
    return [(one.computation_type.value, one.stage_index, one.microbatch_index) for one in flat]


def ours(found: Pipeline, rank: int) -> list[tuple[str, int, int]]:
    return [(kind, found.stage(rank, chunk), i) for kind, chunk, i, _ in found.actions_by_rank[rank]]


@in_one_test
@pytest.mark.parametrize(("p", "v", "m"), [(2, 2, 2), (4, 2, 8), (4, 2, 10), (4, 3, 4), (3, 4, 12), (4, 2, 3)])
def test_interleaved_is_torchs(p: int, v: int, m: int) -> None:
    group = torch_group_size(p, m)
    schedule = asked(
        "ScheduleInterleaved1F1B", pp_group_size=p, n_local_stages=v, _n_microbatches=m, microbatches_per_round=group
    )
    if m < p:  # torch runs it with ranks that wait, Megatron refuses it
        with pytest.raises(InputError, match="--num-microbatches"):
            check_micro_batches(Layout(pp=p, vpp=v), m)
        return
    found = pipeline(Layout(pp=p, vpp=v), m, group)
    for rank in range(p):
        assert ours(found, rank) == told(schedule._calculate_single_rank_operations(rank))


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 2), (4, 8), (8, 24)])
def test_zb_h1_is_torchs_interleaved_zero_bubble_with_one_stage(p: int, m: int) -> None:
    group = torch_group_size(p, m)
    schedule = asked(
        "ScheduleInterleavedZeroBubble",
        pp_group_size=p, n_local_stages=1, _n_microbatches=m, microbatches_per_round=group,
    )  # fmt: skip
    found = pipeline(Layout(pp=p, schedule="zb-h1"), m)
    for rank in range(p):
        assert ours(found, rank) == told(schedule._calculate_single_rank_operations(rank))


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 20), (8, 16), (12, 30)])
def test_dualpipe_is_torchs_dualpipev_unfolded(p: int, m: int) -> None:
    """DualPipeV on p/2 ranks is one half of DualPipe on p: what there is the way back is here the other direction."""
    schedule = asked("ScheduleDualPipeV", pp_group_size=p // 2, _n_microbatches=m // 2)
    found = pipeline(Layout(pp=p, schedule="dualpipe"), m)
    for rank in range(p // 2):
        folded = told(schedule._calculate_single_rank_operations(rank))
        here = [(kind, stage == p - 1 - rank, i) for kind, stage, i in folded]
        there = [(kind, chunk == 1, i - chunk * m // 2) for kind, chunk, i, _ in found.actions_by_rank[rank]]
        assert there == here
        mirrored = [(kind, chunk == 0, i - chunk * m // 2) for kind, chunk, i, _ in found.actions_by_rank[p - 1 - rank]]
        assert mirrored == here


@pytest.mark.parametrize(("p", "m"), [(2, 1), (4, 2), (4, 8), (8, 24)])
def test_1f1b_is_what_torchs_runs(p: int, m: int) -> None:
    """Schedule1F1B's own loop, with a stage that writes down what it is asked to do."""
    for rank, order in enumerate(pipeline(Layout(pp=p), m).actions_by_rank):
        stage = MagicMock(stage_index=rank, is_first=rank == 0, is_last=rank == p - 1)
        for get in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
            getattr(stage, get).return_value = []
        schedule = asked("Schedule1F1B", _num_stages=p, _n_microbatches=m)
        schedule._stage = stage
        for method in ("_initialize_stage", "_maybe_compute_loss", "_maybe_get_loss", "_update_losses"):
            setattr(schedule, method, MagicMock())
        schedule._check_image_options = lambda *_: ([()] * m, [{}] * m)
        schedule.scale_grads = False
        schedule._step_microbatches()
        done = [
            f"{'F' if name == 'forward_one_chunk' else 'B'}{args[0] if args else kwargs['bwd_chunk_id']}"
            for name, args, kwargs in stage.mock_calls
            if name in ("forward_one_chunk", "backward_one_chunk")
        ]
        assert " ".join(done) == words(order)


def test_torchtitans_names_are_torchs_schedules() -> None:
    for name, schedule in SCHEDULES.items():
        assert torch_schedules.get_schedule_class(name).__name__ == f"Schedule{name}"
        assert schedule in ("1f1b", "interleaved")


# --- what holds for all -----------------------------------------------------------------------------------------------


@st.composite
def runs(draw: st.DrawFn) -> Timetable:
    """A timetable of any schedule, of any size and costs."""
    schedule = draw(st.sampled_from(("1f1b", "interleaved", "zb-h1", "dualpipe")))
    costs = PassDurations(*draw(st.tuples(*[st.integers(1, 5)] * 3)), draw(st.integers(0, 2)))
    group, v = None, 1
    if schedule == "dualpipe":
        p = 2 * draw(st.integers(1, 5))
        m = 2 * draw(st.integers(p, p + 6))
    elif schedule == "interleaved":
        p, v = draw(st.integers(2, 6)), draw(st.integers(2, 4))
        group = draw(st.integers(p, 2 * p))
        m = group * draw(st.integers(1, 3)) + draw(st.sampled_from([0, *range(p, group)]))
    else:
        p, m = draw(st.integers(1, 9)), draw(st.integers(1, 20))
    return timetable(pipeline(Layout(pp=p, vpp=v, schedule=schedule), m, group), costs)


def ends(found: Timetable) -> Iterator[tuple[PassAction, int, float, float]]:
    """Every action with its stage and its time."""
    for rank, spans in enumerate(found.spans_by_rank):
        for action, start, end in spans:
            yield action, found.pipeline.stage(rank, action.chunk_index), start, end


@settings(max_examples=60, deadline=None, derandomize=True)
@given(runs())
def test_every_micro_batch_passes_every_stage_once_and_in_order(found: Timetable) -> None:
    p = found.pipeline
    counts = Counter((stage, action.micro_batch, action.pass_kind) for action, stage, _, _ in ends(found))
    assert set(counts.values()) == {1}
    split = {(stage, i) for stage, i, kind in counts if kind == "I"}
    for stage in range(p.stages):
        for i in range(p.micro_batches):
            backward = {"I", "W"} if (stage, i) in split else {"B"}
            assert {kind for kind in "FBIW" if counts[stage, i, kind]} == {"F"} | backward
    starts, stops = {}, {}
    for action, stage, start, end in ends(found):
        kind = "B" if action.pass_kind == "I" else action.pass_kind
        starts[kind, stage, action.micro_batch], stops[kind, stage, action.micro_batch] = start, end
    send, last = found.pass_durations.send_time, p.stages - 1
    for (kind, stage, i), start in starts.items():
        if kind == "F":
            assert stage == 0 or start >= stops["F", stage - 1, i] + send
        elif kind == "B":
            assert start >= stops["F", stage, i]
            assert stage == last or start >= stops["B", stage + 1, i] + send
        else:
            assert start >= stops["B", stage, i]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(runs())
def test_in_flight_is_the_same_counted_three_ways(found: Timetable) -> None:
    p = found.pipeline
    for rank in range(p.ranks):
        course = [held for _, held in p.in_flight(rank)]
        assert max(held.total for held in course) == p.most_in_flight(rank) == p.peak_in_flight(rank)[0]
        peak, held = p.peak_in_flight(rank)
        assert held in course
        assert held.total == peak
        sizes, rest = range(3, 3 + p.chunk_count), [1] * p.chunk_count
        weighed = [
            sum(a * n for a, n in zip(sizes, held.awaiting_backward, strict=True)) + sum(held.awaiting_weight_gradients)
            for held in course
        ]
        assert p.peak_in_flight(rank, sizes, rest)[0] == max(weighed)
        assert all(min(*held.awaiting_backward, *held.awaiting_weight_gradients) >= 0 for held in course)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(runs())
def test_ranks_run_one_thing_at_a_time_and_never_longer_than_one_after_the_other(found: Timetable) -> None:
    work = sum(found.busy_time(rank) for rank in range(found.pipeline.ranks))
    assert found.total_time <= work + found.pass_durations.send_time * found.message_count
    for rank, spans in enumerate(found.spans_by_rank):
        free = 0.0
        for action, start, end in spans:
            assert start >= free
            free = free if action.is_overlapped else end
        assert found.busy_time(rank) == found.busy_time(0) or found.pipeline.is_bidirectional
    ways = 2 * found.pipeline.micro_batches * (found.pipeline.stages - 1)
    assert found.message_count == ways * (found.pipeline.ranks > 1)


def test_a_deadlock_is_found() -> None:
    """Rank 1 asks for its backward pass before its forward pass, and rank 0 waits for it too."""
    forward, backward = PassAction("F", 0, 0), PassAction("B", 0, 0)
    with pytest.raises(Deadlock, match="rank 0 waits for ever to run B of micro-batch 0 in chunk 0"):
        timetable(Pipeline(2, 1, 1, ((forward, backward), (backward, forward))))
    with pytest.raises(Deadlock, match="twice"):
        timetable(Pipeline(1, 1, 1, ((forward, forward),)))
    with pytest.raises(Deadlock, match="W of micro-batch 0"):
        timetable(Pipeline(1, 1, 1, ((forward, PassAction("W", 0, 0), PassAction("I", 0, 0)),)))


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "micro_batches", "group", "message"),
    [
        (Layout(pp=4), 0, None, "--num-microbatches: 0; expected a positive"),
        (Layout(pp=4, vpp=2), 10, None, "expected a multiple of 4, such as 8 or 12, or no --vpp"),
        (Layout(pp=4, vpp=2), 2, None, "expected a multiple of 4, such as 4"),
        (Layout(pp=4, vpp=2), 8, 3, "--microbatch-group-size-per-virtual-pipeline-stage: 3; expected at least"),
        (Layout(pp=4, vpp=2), 8, 6, "takes groups of 6 micro-batches"),  # 2 are left, fewer than ranks
        (Layout(pp=4, schedule="dualpipe"), 6, None, "--schedule dualpipe takes an even number of at least twice --pp"),
        (Layout(pp=4, schedule="dualpipe"), 9, None, "expected 10"),
    ],
)
def test_micro_batches_that_a_schedule_does_not_take(
    layout: Layout, micro_batches: int, group: int | None, message: str
) -> None:
    for asking in (check_micro_batches, pipeline):
        with pytest.raises(InputError, match=message):
            asking(layout, micro_batches, group)
