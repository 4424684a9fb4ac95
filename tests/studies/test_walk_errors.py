"""What a plan says of layouts that it does not replay: the walk's error stays within what is stated."""

from __future__ import annotations

import pytest

from llmcalc.frameworks.registry import NAMES
from llmcalc.frameworks.registry import framework as framework_named
from tests.samples import spread, with_rest
from tests.studies.walk_errors import errors

GRID = (
    ("qwen3-0.6b", 512, 16),
    ("mixtral-8x7b", 512, 64),  # eight experts, fewer than shards
    ("qwen3-0.6b", 2048, 16),
    ("llama3-8b", 512, 64),
    ("olmoe-1b-7b", 512, 64),  # 64 experts: not divided evenly by 128 shards
)

SAMPLE = ("mixtral-8x7b-512-64-megatron", "mixtral-8x7b-512-64-deepspeed", "qwen3-0.6b-512-16-fsdp2")
"""The model of experts where ranks divide them and where they divide states, a dense one where they divide all."""


CASES = {
    f"{model}-{seq}-{devices}-{framework}": (model, seq, devices, framework)
    for model, seq, devices in GRID
    for framework in NAMES
}


@pytest.mark.parametrize(("model", "seq", "devices", "framework"), spread(with_rest(CASES, SAMPLE)))
def test_a_replay_needs_what_is_stated(model: str, seq: int, devices: int, framework: str) -> None:
    stated = framework_named(framework).estimate_errors
    for error in errors(framework, model, seq, 2, devices):
        assert -stated.under <= error.share <= stated.over, error
