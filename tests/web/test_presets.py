"""Every preset at three settings: the page's Python answers what CPython answers, byte for byte (2 min, two cores)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmcalc.sources.presets import model_names

from .loading import FIRST

pytestmark = pytest.mark.browser

SETTINGS = (
    {"ctx": 8192, "batch": 1, "weights": "bf16", "kv": "bf16"},
    {"ctx": 32768, "batch": 16, "weights": "q4_k_m", "kv": "fp8"},
    {"ctx": 1024, "batch": 2, "weights": "fp8", "kv": "int4"},
)

PARTS = 4
"""The presets are divided, so that processes can share the work."""

Same = Callable[[list[tuple[str, dict[str, Any]]]], None]


@pytest.mark.parametrize("part", range(PARTS))
def test_every_preset(same: Same, part: int) -> None:
    same([("answer", {"model": name, **setting}) for name in model_names()[part::PARTS] for setting in SETTINGS])


def test_memory_and_a_formula(same: Same) -> None:
    questions = [("memory", {"model": name, **setting}) for name in FIRST for setting in SETTINGS]
    same([*questions, ("explain", {"model": "deepseek-v3", "node": "self_attn", "ctx": 4096, "kv": "bf16"})])
