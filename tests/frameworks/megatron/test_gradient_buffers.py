"""Gradient buffers of Megatron-LM by hand: where buckets end, and which ranks share them."""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.frameworks.megatron.kernels.lowering import Parameter
from llmcalc.frameworks.megatron.param_and_grad_buffer import (
    GradientBuffer,
    bucket_elements_of_chunk,
    make_buffer,
    optimizer_updates,
    shard_index,
)
from llmcalc.frameworks.megatron.settings import MegatronSettings
from llmcalc.parallel.layout import Layout
from llmcalc.simulator.meter import Meter
from llmcalc.simulator.tensor import BFLOAT16, empty
from tests.samples import in_one_test

SIZES = (100, 300)
"""Elements of two parameters. In a buffer the second comes first; the other begins at 320 = 5 · 64, and ends at 420."""


def settings(**flags: Any) -> MegatronSettings:
    return MegatronSettings(kind="gpt", **flags)


def buffer(layout: Layout) -> GradientBuffer:
    meter = Meter()
    parameters = [Parameter((), empty(meter, (size,), BFLOAT16), False, "") for size in SIZES]
    return make_buffer(parameters, False, settings(), layout, None, False, True)


@in_one_test
@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (Layout(zero=1), 512),
        (Layout(dp=4, zero=1), 512),
        (Layout(dp=3, zero=1), 768),  # lcm(3, 128) = 384
        (Layout(dp=5, zero=1), 640),
        (Layout(dp=2, cp=3, zero=1), 768),
        (Layout(dp=6, hsdp_replicas=2, zero=1), 768),
    ],
    ids=lambda value: value.options() if isinstance(value, Layout) else str(value),
)
def test_a_bucket_ends_at_a_multiple_of_128_and_of_the_ranks_that_share_it(layout: Layout, size: int) -> None:
    assert buffer(layout).element_count == size
    assert size % layout.shard_count == 0


@pytest.mark.parametrize(
    "layout", [Layout(dp=3, zero=1), Layout(dp=2, cp=3, zero=1), Layout(tp=2, dp=2, cp=2, zero=1)], ids=Layout.options
)
def test_ranks_of_data_and_of_contexts_share_the_optimizers_states(layout: Layout) -> None:
    """Each element is updated once in each tensor group, and no two ranks of a group have the same shard."""
    shared = buffer(layout)
    ranks = [layout.coordinates(rank) for rank in range(layout.world_size)]
    updated = sum(update.element_count for rank in ranks for update in optimizer_updates([shared], True, layout, rank))
    assert updated == layout.tp * sum(SIZES)
    assert sorted(shard_index(shared, layout, rank) for rank in ranks) == sorted(
        [*range(layout.shard_count)] * layout.tp
    )


def test_a_bucket_grows_with_the_ranks_of_data_and_of_contexts() -> None:
    overlapped = settings(overlap_grad_reduce=True)
    sizes = [
        bucket_elements_of_chunk(overlapped, layout, layout.coordinates(0), 0, 10**9)
        for layout in (Layout(dp=8, zero=1), Layout(dp=64, zero=1), Layout(dp=8, cp=8, zero=1))
    ]
    assert sizes == [40_000_000, 64_000_000, 64_000_000]
