"""A few of the variations of `differential.py` for every model type, and that it tells a wrong reading from a right
one.

Which fields are changed, a hash chooses among all that the installed class has today; `python -m tests.differential`
takes them all.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.sources.huggingface.registry import family_of, model_types, read_config
from tests import differential
from tests.differential import judged, sampled

MANY = 1
"""Variations of each model type; most of the time goes into loading the classes, some 20 s of one core,
and half as much again for one more.
"""

MISTRAL: dict[str, Any] = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "vocab_size": 96,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "sliding_window": 8,
}


@pytest.mark.parametrize("kind", [kind for kind in model_types() if family_of(kind).read is not None])
def test_a_config_with_a_changed_field_is_counted_as_its_class_or_refused(kind: str) -> None:
    found = sampled(kind, MANY)
    assert len(found) == MANY
    told = [(name, value, *judged(config)) for _, name, value, config in found]
    assert not [one for one in told if one[2] in ("wrong", "crash")]


@pytest.mark.parametrize(
    "change", [{"hidden_size": 64}, {"num_key_value_heads": 4}, {"intermediate_size": 40}, {"sliding_window": 12}]
)
def test_a_field_that_is_read_wrongly_is_told(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    assert judged(MISTRAL) == ("same", "")
    monkeypatch.setattr(differential, "read_config", lambda config: read_config({**config, **change}))
    assert judged(MISTRAL)[0] == "wrong"


def test_a_reader_that_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(differential, "read_config", lambda config: config["no such field"])
    assert judged(MISTRAL)[0] == "crash"


def test_a_known_difference_excuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {**MISTRAL, "sliding_window": 1}
    assert judged(narrow)[0] == "known"
    monkeypatch.setattr(differential, "read_config", lambda config: read_config({**config, "intermediate_size": 40}))
    assert judged(narrow)[0] == "wrong"


def test_what_is_refused_is_held_against_the_class() -> None:
    assert judged({**MISTRAL, "hidden_act": "none"})[0] == "unbuilt"
    assert judged({**differential.shapes_of("deepseek_v2")[0], "moe_layer_freq": 2})[0] == "refused"


def test_the_sample_is_of_the_variations_and_always_the_same() -> None:
    every = [(i, name, repr(value)) for i, name, value, _ in differential.of_kind("gpt2")]
    first = [(i, name, repr(value)) for i, name, value, _ in sampled("gpt2", 9)]
    assert set(first) <= set(every)
    assert len(set(first)) == 9
    assert first == [(i, name, repr(value)) for i, name, value, _ in sampled("gpt2", 9)]
