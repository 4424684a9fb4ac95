"""The config fields of dropout probabilities and where in the model they apply, for several families.

Read from `nn.Dropout` and `nn.functional.dropout` in transformers/models/*/modeling_*.py; a test counts the calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .config import Config, is_number
from .family import Family

BERT_DROPOUT = {
    "embedding": "hidden_dropout_prob",
    "attention": "attention_probs_dropout_prob",
    "attention_output": "hidden_dropout_prob",
    "feed_forward": "hidden_dropout_prob",
}

GPT2_DROPOUT = {
    "embedding": "embd_pdrop",
    "attention": "attn_pdrop",
    "attention_output": "resid_pdrop",
    "feed_forward": "resid_pdrop",
}

BART_DROPOUT = {
    "embedding": "dropout",
    "attention": "attention_dropout",
    "attention_output": "dropout",
    "activation": "activation_dropout",
    "feed_forward": "dropout",
}

T5_DROPOUT = dict.fromkeys(
    ("embedding", "attention", "attention_output", "activation", "feed_forward", "final"), "dropout_rate"
)

WAV2VEC_DROPOUT = {
    "embedding": "hidden_dropout",
    "attention": "attention_dropout",
    "attention_output": "hidden_dropout",
    "activation": "activation_dropout",
    "feed_forward": "hidden_dropout",
}

HIDDEN_DROPOUT = {
    "attention": "attention_dropout",
    "attention_output": "hidden_dropout",
    "feed_forward": "hidden_dropout",
}


def dropout_of(config: Config, family: Family) -> Mapping[str, Any]:
    """Returns the model's field `dropout`; empty for a family whose only dropout is in attention and is 0.

    Raises `InputError` for a probability that is no number from 0 to below 1.
    """
    probability_by_place = {
        dropout_place: _read_probability(config, field_name)
        for dropout_place, field_name in family.dropout_fields.items()
    }
    if any(probability_by_place.values()) or set(probability_by_place) != {"attention"}:
        return {"dropout": probability_by_place}
    return {}


def _read_probability(config: Config, field_name: str) -> float:
    """Returns a dropout probability of the config; null means 0, as in transformers."""
    config.fields_read.add(field_name)
    probability = config.config_fields.get(field_name, config.defaults.get(field_name, 0.0))
    if probability is None:
        return 0.0
    if not is_number(probability) or not 0 <= probability < 1:
        raise config.error(field_name, probability, "a probability from 0 to below 1")
    return float(probability)
