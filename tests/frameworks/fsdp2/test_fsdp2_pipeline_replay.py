"""Long pipelines of FSDP2: passes that are recorded with four micro-batches and played find what running all finds."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from llmcalc import load
from llmcalc.device_memory.estimate import memory
from llmcalc.device_memory.settings import Settings
from llmcalc.frameworks.fsdp2 import rank_memory
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
    "several schedules a step": ("", TitanSettings(schedules=2), 28, {}),
}
"""Version, settings of its own, micro-batches where ranks have several chunks, and options of a run."""

SAMPLE = {
    "newest": ("one stage a rank", "four chunks"),
    "recomputed": ("uneven stages",),
    "gradients of bf16": ("tensors too",),
    "outputs are kept": ("uneven stages", "two chunks"),
    "several schedules a step": ("one stage a rank",),
}
"""Job → the layouts that run in every test run: one without several chunks on a rank, and of the newest version and the
earlier one also one with them.
"""


def _pairs() -> Iterator[Any]:
    """Yields every layout and job; those outside of the sample are exhaustive."""
    for (job, values), (name, layout) in product(JOBS.items(), LAYOUTS.items()):
        marks = () if name in SAMPLE[job] else pytest.mark.exhaustive
        yield pytest.param(layout, *values, id=f"{job}-{name}", marks=marks)


def test_the_sample_has_every_layout() -> None:
    assert {name for names in SAMPLE.values() for name in names} == LAYOUTS.keys()
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
    play = rank_memory.played_stage

    def watched(*args: Any) -> Any:
        found = play(*args)
        played.append(found is not None)
        return found

    monkeypatch.setattr(rank_memory, "played_stage", watched)
    found = Cluster.of(one, layout, "fsdp2", version, own).by_rank
    assert all(played)
    assert len(played) == len(found)
    monkeypatch.setattr(rank_memory, "played_stage", lambda *_: None)
    assert found == Cluster.of(one, layout, "fsdp2", version, own).by_rank
