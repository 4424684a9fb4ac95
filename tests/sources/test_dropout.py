"""Probabilities of dropout in configs: read by the names and with the defaults of each family's class."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from llmcalc.components.dropout import Dropout
from llmcalc.errors import InputError
from llmcalc.sources.huggingface.registry import family_of, model_types
from tests.builders import spec_of
from tests.samples import in_one_test

GPT2: dict[str, Any] = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
}


@in_one_test
@pytest.mark.parametrize("kind", [kind for kind in model_types() if family_of(kind).read_model is not None])
def test_fields_and_defaults_are_those_of_the_class(kind: str) -> None:
    """Families without a class here have the fields of their own code."""
    family = family_of(kind)
    cls: Any = (
        CONFIG_MAPPING.get(family.class_model_type or kind)
        if (family.class_model_type or kind) in CONFIG_MAPPING
        else None
    )
    if cls is None:
        return
    config = cls()
    for name in family.dropout_fields.values():
        assert getattr(config, name) == family.defaults.get(name, 0.0), name


def test_gpt2_drops_at_four_places_by_default() -> None:
    assert spec_of(GPT2).dropout == Dropout(embedding=0.1, attention=0.1, attention_output=0.1, feed_forward=0.1)
    changed = spec_of({**GPT2, "attn_pdrop": 0.0, "resid_pdrop": 0.2, "embd_pdrop": None}).dropout
    assert changed == Dropout(embedding=0.0, attention=0.0, attention_output=0.2, feed_forward=0.2)


def test_a_decoder_without_dropout_states_none() -> None:
    assert spec_of(LLAMA).dropout is None
    assert spec_of({**LLAMA, "attention_dropout": 0.1}).dropout == Dropout(attention=0.1)


@in_one_test
@pytest.mark.parametrize("value", [1, -0.1, "0.1", True, [0.1]])
def test_what_is_no_probability_is_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"attention_dropout.*expected a probability from 0 to below 1"):
        spec_of({**LLAMA, "attention_dropout": value})
