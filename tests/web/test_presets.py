"""Presets at three settings: the page's Python answers what CPython answers, byte for byte.

The page computes with llmcalc itself, so a preset may differ there only where another part of a model is computed: the
ordinary run has presets with every part and every verb between them, at one setting each, and a few at all. All presets
at all settings are exhaustive (4 min).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest

from llmcalc.sources.presets import model_names
from llmcalc.sources.target import load
from tests.builders import parts_of, verbs_of, with_other_causes

from .loading import FIRST

pytestmark = pytest.mark.browser

SETTINGS = (
    {"ctx": 8192, "batch": 1, "weights": "bf16", "kv": "bf16"},
    {"ctx": 32768, "batch": 16, "weights": "q4_k_m", "kv": "fp8"},
    {"ctx": 1024, "batch": 2, "weights": "fp8", "kv": "int4"},
)

PARTS = 4
"""All presets are divided, so that processes can share the work."""

Same = Callable[[list[tuple[str, dict[str, Any]]]], None]


def computed(name: str) -> set[Any]:
    """The parts of a preset's model, each with the part in which it stands, and the verbs of its steps."""
    spec = load(name).model
    return {*parts_of(spec), *verbs_of(spec)}


def answers(names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Questions for the page's first answer of each preset at every setting."""
    return [("answer", {"model": name, **setting}) for name in names for setting in SETTINGS]


def answers_in_turn(names: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """The same of each preset at one setting, the next preset at the next."""
    return [("answer", {"model": name, **setting}) for name, setting in zip(names, cycle(SETTINGS), strict=False)]


NAMED = ("llama3-8b?num_hidden_layers=16", "some-lab/some-model@v2", "lamma3-8b")


def test_presets_with_every_part_memory_a_formula_and_names(same: Same) -> None:
    memories = [("memory", {"model": name, **setting}) for name in FIRST for setting in SETTINGS]
    formula = ("explain", {"model": "deepseek-v3", "node": "self_attn", "ctx": 4096, "kv": "bf16"})
    named = [("names", {}), *(("find", {"text": text}) for text in NAMED)]
    sample = answers_in_turn(with_other_causes(model_names(), computed))
    same([*sample, *answers(FIRST), *memories, formula, *named])


@pytest.mark.exhaustive
@pytest.mark.parametrize("part", range(PARTS))
def test_every_preset(same: Same, part: int) -> None:
    same(answers(model_names()[part::PARTS]))
