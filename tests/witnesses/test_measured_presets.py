"""Every preset against its recorded measurements, and some presets against their witnesses directly."""

from __future__ import annotations

import pytest

from llmcalc.sources.presets import load_preset, model_names
from llmcalc.sources.target import load
from llmcalc.witnesses.published import verify_published
from llmcalc.witnesses.reference import LEAST_SEQ, verify_reference
from llmcalc.witnesses.transformers import verify_with_transformers
from tests.builders import SOME_PRESETS
from tests.witnesses.presets import QUANTITIES, closed_form, digest, recorded
from tests.witnesses.verdicts import FOLLOWED


def test_every_preset_counts_what_was_measured_of_it() -> None:
    wrong: dict[str, object] = {}
    for name, record in recorded().items():
        preset = load_preset(name)
        assert record["digest"] == digest(preset.model), f"{name}: run python -m tests.witnesses.presets"
        measured = {q: record[q] for q in QUANTITIES if record.get(q, FOLLOWED) != FOLLOWED}
        assert measured, name
        counted = {quantity: closed_form(quantity, preset, record) for quantity in measured}
        if counted != measured:
            wrong[name] = (counted, measured)
    assert not wrong


def test_nothing_else_is_recorded() -> None:
    assert recorded().keys() == {*model_names()}


def test_every_published_count_is_met() -> None:
    published = [preset for preset in map(load_preset, model_names()) if preset.published.parameters is not None]
    assert len(published) > 300
    assert [preset.name for preset in published if not verify_published(preset).ok] == []


@pytest.mark.parametrize("name", [*SOME_PRESETS, "grok-1", "cogview-4b", "lamda-137b", "transformer-base"])
def test_some_agree_with_their_reference(name: str) -> None:
    verdict = verify_reference(load(name).model, name)
    assert verdict.ok, verdict.failures[:5]
    assert {c.quantity for c in verdict.checks} >= {"parameters", "forward_flops", "train_flops"}


@pytest.mark.parametrize("name", SOME_PRESETS)
def test_some_agree_with_their_class(name: str) -> None:
    """At one length; the small shapes of every family are compared at two."""
    verdict = verify_with_transformers(load(name, ("towers={}",)), seq=LEAST_SEQ)
    assert verdict.ok, verdict.failures
