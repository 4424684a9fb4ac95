"""Steps of many micro-batches: the tensors of all are counted, and the allocator replays as many as a stated bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.device_memory import DeviceMemory
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks import ranks
from llmcalc.frameworks.ranks import Cluster
from llmcalc.frameworks.torch import pipeline_replay
from llmcalc.parallel.layout import Layout
from llmcalc.parallel.schedules import torch_group_size
from llmcalc.simulator.caching_allocator import CachingAllocator
from tests.in_process import command
from tests.samples import in_one_test

RUNS: dict[str, tuple[str, Layout, int]] = {
    "torch, stages": ("torch", Layout(pp=2), 40),
    "torch, chunks": ("torch", Layout(pp=4, vpp=2, schedule="interleaved"), 40),
    "torch, replicas": ("torch", Layout(dp=2), 40),
    "FSDP2, stages": ("fsdp2", Layout(pp=2, dp=2, zero=3, reshard=False), 40),
    "FSDP2, chunks": ("fsdp2", Layout(pp=2, vpp=2, dp=2, zero=3, reshard=False, schedule="interleaved"), 40),
}


def cluster_of(framework: str, layout: Layout, micro_batches: int) -> Cluster:
    spec = load("llama3-8b?num_hidden_layers=8").model
    return Cluster.with_framework(
        memory(spec, Settings("training", seq=256, num_microbatches=micro_batches)), layout, framework
    )


@pytest.mark.parametrize(("framework", "layout", "micro_batches"), RUNS.values(), ids=RUNS)
def test_fewer_micro_batches_on_the_allocator(
    framework: str, layout: Layout, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tensors stay equal to the byte; the segments are an estimate, and say of how many micro-batches."""
    steps: list[int] = []
    play = CachingAllocator.run_steps

    def counted(self: CachingAllocator, pieces: Any, *numbers: int) -> None:
        steps.append(len(pieces))
        play(self, pieces, *numbers)

    monkeypatch.setattr(CachingAllocator, "run_steps", counted)
    whole = cluster_of(framework, layout, micro_batches).by_rank
    steps_of_all = sum(steps)
    steps.clear()
    monkeypatch.setattr(pipeline_replay, "MAX_PASSES", 160)
    shorter = cluster_of(framework, layout, micro_batches).by_rank
    assert sum(steps) < 0.8 * steps_of_all
    for all_of_them, some in zip(whole, shorter, strict=True):
        assert some.device.exact_bytes == all_of_them.device.exact_bytes
        assert some.device.timeline == all_of_them.device.timeline
        assert some.device.reserved_bytes == pytest.approx(all_of_them.device.reserved_bytes, rel=0.02)
        rounding = next(term for term in some.device.terms if term.name == "rounding to blocks")
        assert rounding.status == "estimate"
        assert "micro-batches of a step, extrapolated to all" in rounding.witness
        rounding = next(term for term in all_of_them.device.terms if term.name == "rounding to blocks")
        assert (rounding.status, "micro-batches" in rounding.witness) == ("source", False)


@pytest.mark.parametrize(
    ("model", "layout", "micro_batches"),
    [
        ("llama3-8b?num_hidden_layers=8", Layout(dp=2), 1),
        ("llama3-8b?num_hidden_layers=8", Layout(tp=2, dp=2), 2),
        ("gemma3-1b?num_hidden_layers=24", Layout(pp=2, dp=2), 3),
        ("deepseek-v2-lite?num_hidden_layers=8", Layout(dp=2), 1),
        ("gpt2", Layout(pp=2, vpp=2, schedule="interleaved"), 2),
    ],
)
def test_steps_of_few_layers_are_those_of_all(
    model: str, layout: Layout, micro_batches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peaks, DDP's buckets and both kinds of segments are equal to the byte to a run of every layer."""

    def memory_of_ranks() -> list[DeviceMemory]:
        run = memory(load(model).model, Settings("training", seq=64, num_microbatches=micro_batches))
        cluster = Cluster.with_framework(run, layout, "torch")
        runtimes = [replace(run.cuda_runtime, has_expandable_segments=expandable) for expandable in (False, True)]
        return [cluster.rank_memory(rank, runtime).device for rank in cluster.ranks for runtime in runtimes]

    from_few = memory_of_ranks()
    monkeypatch.setattr(pipeline_replay, "_count_steps_of_few_layers", lambda _: None)
    assert from_few == memory_of_ranks()


@in_one_test
@pytest.mark.parametrize(("stages", "chunks"), [(1, 1), (2, 1), (16, 1), (2, 2), (4, 3)])
def test_micro_batches_on_the_allocator_fill_the_schedule(stages: int, chunks: int) -> None:
    layout = Layout(pp=stages, vpp=chunks, schedule="interleaved" if chunks > 1 else "1f1b")
    for micro_batches in range(stages, 300):
        count = pipeline_replay.micro_batches_on_allocator(layout, [], micro_batches)
        assert min(micro_batches, 2 * stages * chunks + 2) <= count <= micro_batches
        if chunks > 1:
            assert torch_group_size(stages, count) == torch_group_size(stages, micro_batches)


def test_of_a_long_pipeline_the_ranks_that_may_need_most_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier stage with the same layers needs no less, so the answer stays."""
    layout = Layout(pp=4)
    whole = cluster_of("torch", layout, 8)
    assert (whole.ranks, whole.unlisted_stages) == ((0, 1, 2, 3), [])
    monkeypatch.setattr(ranks, "MAX_PASSES_OF_ALL_STAGES", 63)
    some = cluster_of("torch", layout, 8)
    assert (some.ranks, some.unlisted_stages) == ((0, 1, 3), [2])
    assert some.by_rank == tuple(rank for rank in whole.by_rank if rank.stage != 2)
    assert some.device_rank == whole.device_rank
    assert whole.by_rank[2].device.device_bytes <= whole.by_rank[1].device.device_bytes
    assert cluster_of("megatron", layout, 8).unlisted_stages == []  # which replays no more for more micro-batches


def test_stages_that_are_not_replayed_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MAX_PASSES_OF_ALL_STAGES", 63)
    words = ["gpt2", "--phase", "training", "--framework", "torch", "--pp", "6", "--num-microbatches", "8", "--notes"]
    screen = " ".join(command("memory", *words).out.split())
    assert "stages 2–4: not replayed, since an earlier stage has all of their layers and more micro-batches" in screen
