"""What a plan says of layouts that it does not replay: the walk's error stays within what is stated."""

from __future__ import annotations

import pytest

from llmcalc.layouts.asked import Framework
from llmcalc.studies.plan import OVER, UNDER
from tests.studies.walk_errors import FRAMEWORKS, errors

GRID = (
    ("qwen3-0.6b", 512, 16),
    ("qwen3-0.6b", 2048, 16),
    ("llama3-8b", 512, 64),
    ("olmoe-1b-7b", 512, 64),  # 64 experts: not divided evenly by 128 shards
    ("mixtral-8x7b", 512, 64),  # eight experts, fewer than shards
)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(("model", "seq", "devices"), GRID)
def test_a_replay_needs_what_is_stated(framework: Framework, model: str, seq: int, devices: int) -> None:
    for error in errors(framework, model, seq, 2, devices):
        assert -UNDER[framework] <= error.share <= OVER, error
