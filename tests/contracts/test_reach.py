"""Contract: `reach` names the lengths at which the cost of a mixer changes; `verify` runs past them to test full
windows and selections.

The FLOPs of a decoded token and the cache grow linearly with the context, except where a window, a chunk or a selection
becomes full. Each such length must be near one that `reach` returns, and each length that it returns must be one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from llmcalc.components.base import TokenMixer
from llmcalc.components.choices import MIXERS
from llmcalc.costs.cache import cache_bits_cost_by_name
from llmcalc.costs.flops import forward_flops_of
from llmcalc.model import ModelSpec
from tests.builders import run_config
from tests.contracts.test_parts import around_a_model
from tests.samples import in_one_test

LONGEST = 40
EXAMPLES = [
    pytest.param(example, id=f"{cls.__name__}-{i}")
    for cls in MIXERS.load_component_classes()
    if issubclass(cls, TokenMixer) and "decoder" in cls.allowed_stacks
    for i, example in enumerate(cls.examples())
]


def bends(spec: ModelSpec) -> set[int]:
    """Returns the contexts at which the growth of a decoded token's FLOPs or of the cache changes.

    A model that reads a sequence in one pass decodes no token, and its passes grow by the cost of one more token.
    """
    costs: list[list[Any]] = [
        [spec.tree().total(cost, run_config(source=8, pairs="causal", **lengths)) for lengths in lengths_of(spec)]
        for cost in (forward_flops_of, cache_bits_cost_by_name("bfloat16"))
    ]
    if spec.one_pass_model_name:
        costs = [[longer - shorter for shorter, longer in pairwise(totals)] for totals in costs]
    return {
        n
        for totals in costs
        for n in range(2, len(totals) - 1)
        if totals[n + 1] - totals[n] != totals[n] - totals[n - 1]
    }


def lengths_of(spec: ModelSpec) -> list[dict[str, Any]]:
    if spec.one_pass_model_name:
        return [{"seq": n} for n in range(LONGEST)]
    return [{"seq": 1, "context": n, "phase": "decode"} for n in range(LONGEST)]


@in_one_test
@pytest.mark.parametrize("mixer", EXAMPLES)
def test_it_names_the_lengths_at_which_it_changes(mixer: TokenMixer) -> None:
    bends_found, reach = bends(around_a_model(mixer)), mixer.cost_thresholds()
    if bends_found:
        assert any(abs(n - min(bends_found)) <= 2 for n in reach), (bends_found, reach)
    for length in reach:
        assert length > LONGEST or length <= 2 or any(abs(n - length) <= 2 for n in bends_found), (bends_found, length)
