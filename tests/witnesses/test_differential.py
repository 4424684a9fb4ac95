"""Some of the variations of `differential.py` for every model type, and a test that it detects a wrong reading.

A hash chooses the fields among all fields of the installed class; `python -m tests.witnesses.differential` runs all of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from llmcalc.model import ModelSpec
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, model_types
from tests.builders import with_other_causes
from tests.families import shapes_of
from tests.samples import with_rest
from tests.witnesses import differential
from tests.witnesses.differential import COMPARED, judged, sampled

DRAWN = 4
"""Largest number of variations per model type, until one compares something."""

MAX_EMPTY = 0.2
"""Largest allowed share of variations that compare nothing."""

OF_OTHERS = "encoder-decoder"
"""A model type whose fields are the configs of two other model types, which have variations of their own."""

KINDS = [
    kind
    for kind in model_types()
    if family_of(kind).read_model is not None and not family_of(kind).source and kind != OF_OTHERS
]

SAMPLE = list(with_other_causes(KINDS, lambda kind: [FILE_BY_TYPE[kind].partition(".")[0]]))
"""The first model type of each lineage. Every field that a lineage reads is compared by test_config_fields.py, and
every file of families by test_families.py.
"""

SHARES = {
    "first of each lineage": SAMPLE,
    **{f"all, {share}": KINDS[share::4] for share in range(4)},
}
"""Model types that a test compares, several so that several processes can run them. Each keeps its own variations
within `MAX_EMPTY`, so all of them together do.
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


@pytest.mark.parametrize("kinds", with_rest(SHARES, [name for name in SHARES if name.startswith("first")]))
def test_a_config_with_a_changed_field_is_counted_as_its_class_or_refused(kinds: list[str]) -> None:
    """At least one variation of every model type is compared; few variations before it compare nothing."""
    told: dict[str, list[tuple[Any, ...]]] = {kind: [] for kind in kinds}
    for kind in kinds:
        for _, name, value, config in sampled(kind, DRAWN):
            told[kind].append((*judged(config), kind, name, value))
            if told[kind][-1][0] in COMPARED:
                break
    drawn = [one for several in told.values() for one in several]
    empty = [one for one in drawn if one[0] not in COMPARED]
    assert not [one for one in drawn if one[0] in ("wrong", "crash")]
    assert not [kind for kind, several in told.items() if not several or several[-1] in empty]
    assert len(empty) <= MAX_EMPTY * len(drawn), f"{len(empty)} of {len(drawn)} compared nothing: {empty}"


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


def _raises(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("a mistake in llmcalc")


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("llmcalc.model.ModelSpec", "tree"),
        ("llmcalc.ops.linear.Linear", "forward_flops"),
        ("llmcalc.ops.attention.KVCache", "cache_bits"),
        ("llmcalc.witnesses.transformers", "class_cost_function"),
        ("llmcalc.witnesses.transformers", "find_modules_of_nodes"),
        ("llmcalc.witnesses.transformers", "cache_bytes"),
        ("llmcalc.witnesses.module_measurements", "flops_by_path"),
    ],
)
def test_a_count_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, where: str, name: str) -> None:
    """The class cannot be built, but counts without it run and fail."""
    monkeypatch.setattr(f"{where}.{name}", _raises)
    assert judged(MISTRAL) == ("crash", repr(ZeroDivisionError("a mistake in llmcalc")))
    if where.startswith(("llmcalc.model", "llmcalc.ops")):
        assert judged({**MISTRAL, "rope_parameters": {"rope_type": "none such"}})[0] == "crash"


def _keyless(real: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `run` so that the class gets an argument that is not a valid mask."""

    def run(spec: ModelSpec, model: Any, batch: int, seq: int) -> Any:
        model.forward = lambda **inputs: type(model).forward(model, **inputs, attention_mask="none")
        return real(spec, model, batch, seq)

    return run


def test_a_class_that_runs_and_is_run_wrongly_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmcalc.witnesses import transformers

    monkeypatch.setattr(transformers, "run_forward", _keyless(transformers.run_forward))
    assert judged(MISTRAL)[0] == "crash"


def test_a_class_that_cannot_be_built_is_no_mistake() -> None:
    assert judged({**MISTRAL, "rope_parameters": {"rope_type": "none such"}})[0] == "unbuilt"


def test_a_known_difference_excuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    padded = {**shapes_of("moonshine")[0], "pad_head_dim_to_multiple_of": 16}
    assert judged(padded)[0] == "known"
    monkeypatch.setattr(differential, "read_config", lambda config: read_config({**config, "intermediate_size": 40}))
    assert judged(padded)[0] == "wrong"


def test_a_window_of_one_token_is_no_window_in_a_cache() -> None:
    assert judged({**MISTRAL, "sliding_window": 1}) == ("same", "")


def test_what_is_refused_is_held_against_the_class() -> None:
    assert judged({**MISTRAL, "hidden_act": "none"})[0] == "unbuilt"
    assert judged({**shapes_of("deepseek_v2")[0], "moe_layer_freq": 2})[0] == "refused"


def test_the_sample_is_of_the_variations_and_always_the_same() -> None:
    every = [(i, name, repr(value)) for i, name, value, _ in differential.of_kind("gpt2")]
    first = [(i, name, repr(value)) for i, name, value, _ in sampled("gpt2", 9)]
    assert set(first) <= set(every)
    assert len(set(first)) == 9
    assert first == [(i, name, repr(value)) for i, name, value, _ in sampled("gpt2", 9)]
