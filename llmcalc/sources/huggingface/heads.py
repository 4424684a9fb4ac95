"""Which head a config's `architectures` names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...components.head import HeadKind

HEAD_ENDINGS: dict[str, HeadKind] = {
    "ForCausalLM": "lm",
    "LMHeadModel": "lm",
    "ForConditionalGeneration": "lm",
    "ForMaskedLM": "lm",
    "WithLMHeadModel": "lm",
    "ForPreTraining": "lm",
    "MTModel": "lm",
    "DoubleHeadsModel": "lm",
    "GenerationDecoder": "lm",
    "GenerationEncoder": "none",
    "ForSequenceClassification": "classification",
    "ForTokenClassification": "classification",
    "ForQuestionAnswering": "classification",
    "ForMultipleChoice": "classification",
    "ForNextSentencePrediction": "classification",
    "Model": "none",
}
"""Ending of a class's name → the head that the class has; the first ending that fits wins."""


def architecture_of(data: Mapping[str, Any]) -> str:
    """The class that a config was saved from; empty where it does not say."""
    names = data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def head_of(data: Mapping[str, Any]) -> HeadKind:
    """The head that `architectures` names; a language-model head where it says nothing."""
    name = architecture_of(data)
    return next((head for ending, head in HEAD_ENDINGS.items() if name.endswith(ending)), "lm")
