"""Weights in float32 under torch.autocast to bfloat16: what is cast, what is kept, to the byte.

On the CPU, because autocast does nothing on meta.
"""

from __future__ import annotations

import pytest

from llmcalc.components.layers.block import Block
from llmcalc.components.mixers.attention import Attention
from llmcalc.components.mixers.mla import MLA
from llmcalc.components.networks.feed_forward import FeedForward
from llmcalc.components.norm import Norm
from tests.builders import fields_of
from tests.contracts.test_parts import around_a_model
from tests.samples import sampled
from tests.simulator.models import by_torch, without_values

PARTS = {
    f"{part.__name__}-{i}": example
    for part in (Norm, FeedForward, Attention, MLA, Block)
    for i, example in enumerate(part.examples())
}


@pytest.mark.parametrize(
    "name", sampled({name: name for name in PARTS}, lambda name: [type(PARTS[name]), *fields_of(PARTS[name])])
)
def test_autocast_holds_what_torch_holds(name: str) -> None:
    spec = around_a_model(PARTS[name])
    ours: list[str] = []
    theirs: list[str] = []
    held = without_values(spec, log=ours, autocast=True)
    assert held == by_torch(spec, log=theirs, autocast=True), "\n".join([*ours, "=====", *theirs])
