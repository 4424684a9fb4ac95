"""Wrappers whose text model is read and whose towers are not counted."""

from __future__ import annotations

import pytest

from llmcalc.sources.huggingface.registry import read_config
from tests.test_towers import wrapped


@pytest.mark.parametrize(("kind", "section"), [("aria", "vision_config: 'idefics3_vision'"), ("emu3", "vq_config: 'emu3_vqgan'")])
def test_a_wrapper_whose_towers_are_not_read_says_so_given_or_not(kind: str, section: str) -> None:
    name, _, own = section.partition(": ")
    said = f"its tower is not counted: {section} is not understood"
    table, notes = read_config(wrapped(kind, {name: {"model_type": own.strip("'")}}))
    assert notes == [said]
    assert "towers" not in table
    assert read_config(wrapped(kind, {}))[1] == [f"{name}: not given; its towers are those of its class's defaults", said]
