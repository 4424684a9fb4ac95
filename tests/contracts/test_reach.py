"""Contract: `reach` names the lengths at which the cost of a mixer changes; `verify` runs past them to test full
windows and selections.

The FLOPs of a decoded token and the cache grow linearly with the context, except where a window, a chunk or a selection
becomes full. Each such length must be near one that `reach` returns, and each length that it returns must be one.
"""

from __future__ import annotations

import pytest

from llmcalc.components.base import TokenMixer
from llmcalc.components.choices import MIXERS
from llmcalc.costs.cache import cache_bits_of
from llmcalc.costs.flops import forward_of
from llmcalc.model import ModelSpec
from tests.builders import run_config
from tests.contracts.test_parts import around_a_model
from tests.samples import in_one_test

LONGEST = 40
EXAMPLES = [
    pytest.param(example, id=f"{cls.__name__}-{i}")
    for cls in MIXERS.classes()
    if issubclass(cls, TokenMixer) and "decoder" in cls.sides
    for i, example in enumerate(cls.examples())
]


def bends(spec: ModelSpec) -> set[int]:
    """Returns the contexts at which the growth of a decoded token's FLOPs or of the cache changes."""
    tree, found = spec.tree(), set()
    for cost in (forward_of, cache_bits_of("bfloat16")):
        costs = [
            tree.total(cost, run_config(seq=1, context=n, source=8, phase="decode", pairs="causal"))
            for n in range(LONGEST)
        ]
        found |= {n for n in range(2, LONGEST - 1) if costs[n + 1] - costs[n] != costs[n] - costs[n - 1]}
    return found


@in_one_test
@pytest.mark.parametrize("mixer", EXAMPLES)
def test_it_names_the_lengths_at_which_it_changes(mixer: TokenMixer) -> None:
    bends_found, reach = bends(around_a_model(mixer)), mixer.length_limits()
    if bends_found:
        assert any(abs(n - min(bends_found)) <= 2 for n in reach), (bends_found, reach)
    for length in reach:
        assert length > LONGEST or length <= 2 or any(abs(n - length) <= 2 for n in bends_found), (bends_found, length)
