"""Passes that are played do what passes that are run do, and the allocator of known events what torch's does."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

import llmcalc
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.megatron import rank_memory as answer
from llmcalc.frameworks.ranks import Cluster, RankMemory
from llmcalc.frameworks.torch import pipeline_replay as rehearsal
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.caching_allocator import (
    AllocatorStepEncoder,
    CachingAllocator,
    replay_step_lists,
)
from llmcalc.simulator.event_log import FREE_EVENT, RENAME_EVENT, STREAM_EVENT, WORKSPACE_EVENT, Event, EventRecorder
from llmcalc.simulator.meter import AllocationPlace
from llmcalc.simulator.record_microbatches import PassRecorder
from llmcalc.simulator.repeat_layers import NotRepeatingError
from llmcalc.simulator.tensor import BFLOAT16, Storage, Tensor, empty
from tests.samples import with_rest
from tests.simulator.allocator_witness import WitnessAllocator

SUMS = "allocated", "reserved", "peak_allocated", "peak_reserved"

MIB = 1 << 20


def drawn(random: Random) -> tuple[list[Event], int]:
    """Events of storages that live for any time, of sizes around the limits of the allocator, on three streams."""
    around = [0, 1, 512, 700, 3000, MIB, MIB + 1, 3 * MIB, 10 * MIB - 1, 10 * MIB, 33 * MIB, 100 * MIB]
    sizes = [random.choice(around) + random.choice([0, random.randrange(9999)]) for _ in range(12)]
    events: list[Event] = []
    live: list[int] = []
    count = 0
    for _ in range(random.randrange(1500)):
        which = random.random()
        if which < 0.02:
            events.append((-1, STREAM_EVENT, random.randrange(3)))
        elif which < 0.5 and live:
            events.append((live.pop(random.randrange(len(live))), FREE_EVENT, None))
        else:
            if which > 0.98 and live:
                at = random.randrange(len(live))
                events.append((count, RENAME_EVENT, live[at]))
                live[at] = count
            else:
                events.append(
                    (count, WORKSPACE_EVENT, 4 * MIB) if which > 0.96 else (count, random.choice(sizes), "temporary")
                )
                live.append(count)
            count += 1
    return events, count


def allocated(events: list[Event], count: int, device: WitnessAllocator) -> None:
    """Allocates and frees what events say, one by one."""
    handles: list[Any] = [None] * count
    stream = 0
    for x, size, what in events:
        if size == FREE_EVENT:
            device.free(handles[x])
        elif size == RENAME_EVENT:
            handles[x] = handles[what]
        elif size == STREAM_EVENT:
            stream = what
        else:
            handles[x] = device.allocate(what if size == WORKSPACE_EVENT else size, stream)


@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])
def test_the_allocator_of_known_events_is_torchs(expandable: bool) -> None:
    random = Random(7)
    for _ in range(40):
        events, count = drawn(random)
        device, played = WitnessAllocator(expandable), CachingAllocator(expandable)
        allocated(events, count, device)
        half, score = len(events) // 2, AllocatorStepEncoder(count)
        played.run_steps(score.steps(events[:half]), count)
        played.run_steps([(x - 5, n) for x, n in score.steps(events[half:])], count, 5)  # 5 are added again
        assert [getattr(played, name) for name in SUMS] == [getattr(device, name) for name in SUMS]
        assert (score.requested, score.peak_requested) == (device.requested, device.peak_requested)


@pytest.mark.parametrize("expandable", [False, True], ids=["segments", "expandable"])
def test_pieces_of_a_run_are_played_in_order(expandable: bool) -> None:
    """Pieces whose storages are numbered from the first of them on are those of the whole run."""
    random, events, count = Random(5), list[Event](), 0
    while len(events) < 500:
        events, count = drawn(random)
    steps = AllocatorStepEncoder(count).steps(events)
    cuts = [0, *sorted(random.sample(range(1, len(steps)), 9)), len(steps)]
    pieces = [([(x - start, n) for x, n in steps[start:end]], start) for start, end in pairwise(cuts)]
    whole_device = CachingAllocator(expandable)
    whole_device.run_steps(steps, count)
    device = replay_step_lists(pieces, count, expandable)
    assert [getattr(device, name) for name in SUMS] == [getattr(whole_device, name) for name in SUMS]


EIGHT = "num_hidden_layers=8"
"""Two layers of a stage of four, and as many of a chunk of two in two stages."""

LAYOUTS = {
    "torch, a pipeline": ("torch", f"gpt2?{EIGHT}", Layout(pp=4), {"num_microbatches": 8}),
    "torch, several chunks": (
        "torch",
        f"gpt2?{EIGHT}",
        Layout(pp=2, vpp=2),
        {"num_microbatches": 8, "recompute": "full"},
    ),
    "torch, gradients that are parts of one": (
        "torch",
        f"olmo-hybrid-7b?{EIGHT}",
        Layout(pp=4),
        {"num_microbatches": 8},
    ),
    "torch, replicas": ("torch", f"gpt2?{EIGHT}", Layout(dp=2), {"num_microbatches": 7}),
    "Megatron, a pipeline": ("megatron", f"qwen3-0.6b?{EIGHT}", Layout(pp=4, dp=2, zero=1), {"num_microbatches": 9}),
    "Megatron, several chunks": ("megatron", f"qwen3-0.6b?{EIGHT}", Layout(pp=2, vpp=2), {"num_microbatches": 8}),
    "Megatron, recomputed experts": (
        "megatron",
        f"olmoe-1b-7b?{EIGHT}",
        Layout(pp=4, dp=2, ep=2, zero=1),
        {"num_microbatches": 9, "recompute": "full"},
    ),
    "Megatron, recomputed experts in chunks": (
        "megatron",
        f"olmoe-1b-7b?{EIGHT}",
        Layout(pp=2, vpp=2, dp=2, ep=2, zero=1, schedule="interleaved"),
        {"num_microbatches": 8, "recompute": "full"},
    ),
    "Megatron, experts": (
        "megatron",
        f"olmoe-1b-7b?{EIGHT}",
        Layout(pp=4, dp=2, ep=2, zero=1),
        {"num_microbatches": 9},
    ),
    "Megatron, one micro-batch": ("megatron", f"olmoe-1b-7b?{EIGHT}", Layout(dp=2, ep=2, zero=1), {}),
    "Megatron, two micro-batches of chunks": (
        "megatron",
        f"qwen3-0.6b?{EIGHT}",
        Layout(pp=2, vpp=2, dp=2, zero=1),
        {"num_microbatches": 2},
    ),
}


SAMPLE = (
    "torch, gradients that are parts of one",
    "torch, replicas",
    "Megatron, several chunks",
    "Megatron, recomputed experts in chunks",
    "Megatron, one micro-batch",
    "Megatron, two micro-batches of chunks",
)
"""Layouts with every cause: of each other layout, these have all that it has. torch's chunks are played as Megatron's
are.
"""


@pytest.mark.parametrize("case", with_rest(LAYOUTS, SAMPLE))
def test_played_ranks_are_those_that_are_run(case: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure of every rank, with the timeline of its modules."""
    framework, name, layout, given = case
    one = memory(llmcalc.load(name).model, Settings(phase="training", seq=64, batch=2, **given))

    def ranks() -> tuple[tuple[RankMemory, ...], list[bool]]:
        cluster = Cluster.with_framework(one, layout, framework)
        return cluster.by_rank, [
            known.pass_traces is not None for known in cluster.run.recorded_ranks(one.cuda_runtime).values()
        ]

    are_played: list[bool] = []

    def replay_two_steps(rank_run: Any, *arguments: Any) -> Any:
        are_played.append(rank_run.pass_recorder is not None)
        return play(rank_run, *arguments)

    play = answer.replay_two_steps
    monkeypatch.setattr(answer, "replay_two_steps", replay_two_steps)
    played, rehearsed = ranks()
    assert all(are_played)
    monkeypatch.setattr(rehearsal, "MICROBATCHES_RUN_IN_FULL", 1000)
    unrecorded = answer.RecordedRank(None, (), ())
    monkeypatch.setattr(answer, "record_rank", lambda *arguments: unrecorded)
    run, none = ranks()
    assert rehearsed
    assert all(rehearsed)
    assert not any(none)
    assert played == run


class Chunk:
    """Keeps what it makes as the test says."""

    def __init__(self) -> None:
        self.meter = EventRecorder()
        self.passes = PassRecorder(self.meter, 1)
        self.kept: list[Storage] = []

    def run(self, size: int, keeps: bool = False) -> Tensor:
        def forward() -> Tensor:
            if keeps:
                self.kept.append(Storage(self.meter, 512))
            Storage(self.meter, size)
            return empty(self.meter, (8,), BFLOAT16)

        self.meter.place = AllocationPlace("forward")
        return self.passes.forward(0, None, forward)


def test_passes_that_should_be_alike_are_compared() -> None:
    chunk = Chunk()
    outputs = [chunk.run(size) for size in (3, 5, 7, 7)]  # the first and the second one may differ from the rest
    assert {case[2] for case in chunk.passes.traces()} == {0, 1, 2}
    outputs.append(chunk.run(9))
    with pytest.raises(NotRepeatingError):
        chunk.passes.traces()


def test_what_a_pass_keeps_is_freed_in_a_pass() -> None:
    chunk = Chunk()
    output = chunk.run(3, keeps=True)
    assert chunk.passes.traces()
    chunk.kept.clear()
    with pytest.raises(NotRepeatingError):
        chunk.passes.traces()
    del output
