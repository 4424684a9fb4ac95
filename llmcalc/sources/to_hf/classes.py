"""Finds the classes of `transformers` for a model type and an output head, in the generated list of classes.

`python -m tests.sources.test_classes` generates the list.
"""

from __future__ import annotations

from ...components.classifier import Classifier
from ...components.head import LMHead
from ...model import ModelSpec
from ..huggingface.head_kinds import head_kind_of_config
from ..huggingface.registry import library_class_names

CONDITIONAL_ENDINGS = ("ForConditionalGeneration", "MTModel")
"""Class-name suffixes of encoder-decoder language models."""

CAUSAL_ENDINGS = ("ForCausalLM", "LMHeadModel", "GenerationDecoder")
"""Class-name suffixes of decoder-only language models."""


def class_names(model_type: str, spec: ModelSpec) -> list[str]:
    """Returns the classes of a model type with the output head of this spec, the likeliest first."""
    known_classes = library_class_names().get(model_type, [])
    class_endings = _class_endings(known_classes, spec)
    return [name for class_ending in class_endings for name in _classes_ending_with(known_classes, class_ending)]


def wrapper_names(model_type: str, lacks_head: bool) -> list[str]:
    """Returns the classes of a wrapper's model type, with or without an output head."""
    known_classes = library_class_names().get(model_type, [])
    if lacks_head:
        return _classes_ending_with(known_classes, "Model")
    return _classes_ending_with(known_classes, CONDITIONAL_ENDINGS)


def _classes_ending_with(listed_classes: list[str], class_ending: str | tuple[str, ...]) -> list[str]:
    return [class_name for class_name in listed_classes if class_name.endswith(class_ending)]


def _class_endings(known_classes: list[str], spec: ModelSpec) -> list[str | tuple[str, ...]]:
    if isinstance(spec.head, Classifier):
        return ["ForSequenceClassification", "ForTokenClassification", "ForPreTraining"]
    if isinstance(spec.head, LMHead):
        return [_language_model_class_names(known_classes, spec)]
    encoder_classes = tuple(_classes_ending_with(known_classes, "EncoderModel"))
    if spec.kind == "encoder" and encoder_classes:
        return [encoder_classes]
    return [
        tuple(
            class_name
            for class_name in known_classes
            if head_kind_of_config({"architectures": [class_name]}) == "none" and class_name not in encoder_classes
        )
    ]


def _language_model_class_names(known_classes: list[str], spec: ModelSpec) -> str | tuple[str, ...]:
    """Returns the suffixes of class names for a language model with the spec's kind of stack."""
    if spec.kind == "encoder-decoder":
        return CONDITIONAL_ENDINGS
    if spec.kind == "encoder" and _classes_ending_with(known_classes, "ForMaskedLM"):
        if _classes_ending_with(known_classes, "ForPreTraining") and spec.pooler is not None:
            return "ForPreTraining"
        return "ForMaskedLM"
    if spec.kind == "encoder" and _classes_ending_with(known_classes, CONDITIONAL_ENDINGS):
        return ()
    return (
        *CAUSAL_ENDINGS,
        *(
            class_name
            for class_name in known_classes
            if class_name.endswith("TextModel") and head_kind_of_config({"architectures": [class_name]}) == "lm"
        ),
    )
