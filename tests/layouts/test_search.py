"""The layouts that are tried: all that there are, each found or refused for one reason."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import llmcalc
from llmcalc.errors import InputError
from llmcalc.layouts.asked import Asked, Framework
from llmcalc.layouts.search import BATCH, HEADS, LAYERS, search, shared_out
from llmcalc.run.layout import Layout, stages


@pytest.mark.parametrize(("layers", "count"), [(126, 16), (61, 8), (7, 7), (5, 2), (80, 6)])
def test_layers_are_shared_out_with_the_fewest_at_the_ends(layers: int, count: int) -> None:
    sizes = shared_out(layers, count)
    assert sum(sizes) == layers
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


@pytest.mark.parametrize("framework", ["megatron", "fsdp2", "torch", "deepspeed"])
def test_what_is_found_can_be(framework: Framework) -> None:
    spec = llmcalc.load("mixtral-8x7b").model
    found = search(spec, 16, 64, 1, 4096, framework)
    assert found.found
    assert found.tried == len(found.found) + sum(found.refused.values())
    for layout, batches in found.found:
        assert layout.world == 16
        assert layout.dp * batches == 64
        assert sum(len(stage.layers) for stage in stages(layout, 32)) == 32
    assert len({layout for layout, _ in found.found}) == len(found.found)


def test_refusals_say_why() -> None:
    spec = llmcalc.load("gpt2-xl").model  # 25 heads
    found = search(spec, 16, 8, 1, 1024)
    assert found.refused[HEADS]
    assert found.refused[BATCH]  # 16 replicas for 8 sequences
    assert all(layout.tp == 1 for layout, _ in found.found)


def test_sizes_that_are_asked_hold() -> None:
    spec = llmcalc.load("llama3-70b").model
    found = search(spec, 64, 64, 1, 4096, asked=Asked(tp=8, vpp=1))
    assert {(layout.tp, layout.vpp) for layout, _ in found.found} == {(8, 1)}
    assert len({layout.pp for layout, _ in found.found}) > 1


@pytest.mark.parametrize(
    ("asked", "holds"),
    [
        (Asked(sequence_parallel=False), lambda layout: not layout.sequence_parallel),
        (Asked(zero=0), lambda layout: layout.zero == 0),
        (Asked(schedule="interleaved"), lambda layout: layout.vpp > 1),
        (Asked(schedule="1f1b"), lambda layout: layout.vpp == 1),
        (Asked(fsdp=4, hsdp_replicas=2), lambda layout: (layout.dp, layout.hsdp_replicas, layout.zero) == (8, 2, 3)),
        (Asked(cp_comm="a2a"), lambda layout: layout.cp_comm == "a2a"),
    ],
)
def test_whatever_is_asked_holds(asked: Asked, holds: Callable[[Layout], bool]) -> None:
    found = search(llmcalc.load("llama3-70b").model, 64, 64, 1, 32768, asked=asked)
    assert found.found
    assert all(holds(layout) for layout, _ in found.found)


def test_layers_of_stages_are_not_asked_for() -> None:
    with pytest.raises(InputError, match="--pp-layout: layers are shared out evenly"):
        search(llmcalc.load("llama3-70b").model, 64, 64, 1, 4096, asked=Asked(pp_layout=(40, 40)))


def test_options_that_exclude_each_other_are_a_reason() -> None:
    found = search(llmcalc.load("llama3-70b").model, 64, 64, 1, 4096, asked=Asked(prefetch=2))
    assert set(found.refused) == {LAYERS, "--prefetch: layers are gathered where weights are divided"}
    assert not found.found
