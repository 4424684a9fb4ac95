"""What a plan says of layouts that it does not replay: the walk's error stays within what is stated."""

from __future__ import annotations

import pytest

from llmcalc.frameworks.registry import NAMES
from llmcalc.frameworks.registry import framework as framework_named
from tests.studies.walk_errors import errors

GRID = (
    ("qwen3-0.6b", 512, 16),
    ("mixtral-8x7b", 512, 64),  # eight experts, fewer than shards
    pytest.param("qwen3-0.6b", 2048, 16, marks=pytest.mark.exhaustive),
    pytest.param("llama3-8b", 512, 64, marks=pytest.mark.exhaustive),
    pytest.param("olmoe-1b-7b", 512, 64, marks=pytest.mark.exhaustive),  # 64 experts: not divided evenly by 128 shards
)
"""A dense model and one of experts under every framework; the others are exhaustive."""


@pytest.mark.parametrize("framework", NAMES)
@pytest.mark.parametrize(("model", "seq", "devices"), GRID)
def test_a_replay_needs_what_is_stated(framework: str, model: str, seq: int, devices: int) -> None:
    stated = framework_named(framework).estimate_errors
    for error in errors(framework, model, seq, 2, devices):
        assert -stated.under <= error.share <= stated.over, error
