"""The layouts that are tried: all that there are, each found or refused for one reason."""

from __future__ import annotations

import pytest

import llmcalc
from llmcalc.layouts.asked import Asked, Framework
from llmcalc.layouts.search import BATCH, HEADS, search, shared_out
from llmcalc.run.layout import stages


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
