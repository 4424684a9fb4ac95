"""Long pipelines of FSDP2: passes that are recorded with four micro-batches and played find what running all finds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.fsdp2 import pipeline_replay, rank_memory
from llmcalc.frameworks.fsdp2.settings import TitanSettings
from llmcalc.frameworks.ranks import Cluster
from llmcalc.parallel.layout import Layout

LAYOUTS = {
    "one stage a rank": Layout(pp=4, dp=2, zero=3, reshard=False),
    "uneven stages": Layout(pp=4, dp=2, zero=3, reshard=False, pp_layout=(1, 2, 2, 1)),
    "tensors too": Layout(pp=2, dp=2, tp=2, sequence_parallel=True, zero=3, reshard=False),
    "two chunks": Layout(pp=2, vpp=2, dp=2, zero=3, reshard=False, schedule="interleaved"),
    "four chunks": Layout(pp=2, vpp=4, dp=2, zero=3, reshard=False, schedule="interleaved"),
}

JOBS: dict[str, tuple[str, TitanSettings | None, int, dict[str, Any]]] = {
    "newest": ("", None, 16, {}),
    "recomputed": ("", None, 14, {"recompute": "full"}),
    "gradients of bf16": ("", None, 14, {"precision": "bf16"}),
    "outputs are kept": ("2024-12-26", None, 14, {}),
    "several schedules a step": ("", TitanSettings(schedules_per_step=2), 28, {}),
}
"""Version, settings of its own, micro-batches where ranks have several chunks, and options of a run."""

SAMPLE = {
    "newest": ("one stage a rank", "two chunks"),
    "recomputed": ("uneven stages",),
    "gradients of bf16": ("tensors too",),
    "outputs are kept": ("one stage a rank",),
    "several schedules a step": ("one stage a rank",),
}
"""Job → the layouts that run in every test run: one without several chunks on a rank, and of the newest version also
one with them. Four chunks run as two do.
"""


def _pairs() -> Iterator[Any]:
    """Yields every layout and job; those outside of the sample are exhaustive."""
    for (job, values), (name, layout) in product(JOBS.items(), LAYOUTS.items()):
        marks = () if name in SAMPLE[job] else pytest.mark.exhaustive
        yield pytest.param(layout, *values, id=f"{job}-{name}", marks=marks)


def test_the_sample_has_every_layout() -> None:
    assert {name for names in SAMPLE.values() for name in names} == LAYOUTS.keys() - {"four chunks"}
    for names in SAMPLE.values():
        assert sorted(LAYOUTS[name].vpp > 1 for name in names) == [False, True][: len(names)]


@pytest.mark.parametrize(("layout", "version", "own", "batches", "options"), list(_pairs()))
def test_passes_that_are_played_are_those_that_are_run(
    layout: Layout,
    version: str,
    own: TitanSettings | None,
    batches: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = sum(layout.pp_layout or (max(4, layout.pp * layout.vpp),))
    spec = load(f"llama3-8b?num_hidden_layers={layers}").model
    batches = batches if layout.vpp > 1 else batches // 2  # without chunks passes are played from half as many on
    one = memory(spec, Settings("training", seq=256, num_microbatches=batches, **options))
    played: list[bool] = []
    play = rank_memory.replay_stage

    def watched(*args: Any) -> Any:
        stage = play(*args)
        played.append(stage is not None)
        return stage

    monkeypatch.setattr(rank_memory, "replay_stage", watched)
    ranks = Cluster.with_framework(one, layout, "fsdp2", version, own).by_rank
    assert all(played)
    assert len(played) == len(ranks)
    monkeypatch.setattr(rank_memory, "replay_stage", lambda *_: None)
    assert ranks == Cluster.with_framework(one, layout, "fsdp2", version, own).by_rank


LONG = {
    "one stage a rank": (Layout(pp=3, dp=2, zero=3, reshard=False, pp_layout=(6, 7, 5)), {}),
    "recomputed": (Layout(pp=2, dp=2, tp=2, sequence_parallel=True, zero=3, reshard=False), {"recompute": "full"}),
    "two chunks": (
        Layout(pp=2, vpp=2, dp=2, zero=3, reshard=False, schedule="interleaved"),
        {"recompute": "selective"},
    ),
}
"""Stages with more layers than are recorded, and options of a run."""


@pytest.mark.parametrize(("layout", "options"), LONG.values(), ids=LONG)
@pytest.mark.parametrize("name", ["llama3-8b", "qwen3-8b"])
def test_passes_recorded_with_few_layers_are_those_of_all_layers(
    name: str, layout: Layout, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = sum(layout.pp_layout or (6 * layout.pp * layout.vpp,))
    spec = load(f"{name}?num_hidden_layers={layers}").model
    run = memory(spec, Settings("training", seq=256, num_microbatches=7 * layout.vpp, **options))

    def recorded() -> tuple[Any, dict[Any, Any]]:
        cluster = Cluster.with_framework(run, layout, "fsdp2")
        ranks = cluster.by_rank
        return ranks, {key: rank.pass_traces for key, rank in cluster.run.recorded_ranks(run.cuda_runtime).items()}

    shortened: list[bool] = []
    record_traces = pipeline_replay._record_traces

    def watched(setup: Any, chunks: Any, stacks: Any) -> Any:
        traces = record_traces(setup, chunks, stacks)
        shortened.append(any(stacks))
        return traces

    monkeypatch.setattr(pipeline_replay, "_record_traces", watched)
    few = recorded()
    assert shortened
    assert all(shortened)
    monkeypatch.setattr(pipeline_replay, "repeating_stacks", lambda _: [])
    assert few == recorded()
    assert not all(shortened)


def test_ranks_with_equal_shards_share_their_passes_and_those_with_others_do_not() -> None:
    spec = load("llama3-8b?num_hidden_layers=4&vocab_size=1001").model
    run = memory(spec, Settings("training", seq=64, num_microbatches=8))

    def passes(replicas: int) -> int:
        layout = Layout(pp=2, dp=4, zero=3, reshard=False, hsdp_replicas=replicas)
        cluster = Cluster.with_framework(run, layout, "fsdp2")
        for rank in range(layout.world_size):
            for expandable in (False, True):
                cluster.rank_memory(rank, dataclasses.replace(run.cuda_runtime, has_expandable_segments=expandable))
        return len(cluster.run.recorded_ranks(run.cuda_runtime))

    assert passes(4) == 2  # the two stages
    assert passes(1) == 4  # of 1,001 rows, the last of four ranks has fewer in each stage
