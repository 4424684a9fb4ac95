"""Attention variants hold what torch holds at other lengths, under autocast, and with layers that run again."""

from __future__ import annotations

import pytest

from llmcalc.workload.recompute import MODES
from tests.contracts.test_parts import around_a_model
from tests.simulator.compare import examples
from tests.simulator.models import by_torch, without_values

BIASED = ("Attention-2", "Attention-9", "Attention-11", "RelativeBias-0", "RelativeEmbedding-0", "RelativeAttention-0")
MASKED = ("Attention-10", "DynamicMaskAttention-1", "LocalAttention-1", "MLA-3", "MergedAttention-1")
OTHERS = ("CompressedAttention-2", "CompressedConvAttention-1", "DifferentialAttention-1", "SideConvolution-1")
ALL = (*BIASED, *MASKED, *OTHERS)

EXAMPLES = examples()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(("batch", "seq"), [(1, 33), (3, 2)])
def test_any_length_holds_what_torch_holds(name: str, batch: int, seq: int) -> None:
    spec = around_a_model(EXAMPLES[name])
    assert without_values(spec, batch, seq) == by_torch(spec, batch, seq)


@pytest.mark.parametrize("name", ALL)
def test_autocast_holds_what_torch_holds(name: str) -> None:
    spec = around_a_model(EXAMPLES[name])
    assert without_values(spec, autocast=True) == by_torch(spec, autocast=True)


@pytest.mark.parametrize("name", [name for name in ALL if name != "MergedAttention-1"])
def test_layers_that_run_again_hold_what_torch_holds(name: str) -> None:
    """What all layers add to their scores is computed before the first of them, which a checkpoint requires."""
    spec = around_a_model(EXAMPLES[name])
    what = MODES["full"]
    assert without_values(spec, recompute=what) == by_torch(spec, recompute=what)
