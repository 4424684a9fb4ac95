"""Which classes of `transformers` a model type has, for each kind of head: read from the list of all of them that
`python -m tests.sources.test_classes` writes.
"""

from __future__ import annotations

from ...components.head import Classifier, LMHead
from ...model import ModelSpec
from ..huggingface.heads import head_of
from ..huggingface.registry import classes

CONDITIONAL = ("ForConditionalGeneration", "MTModel")
"""How the names of language models end that have an encoder and a decoder."""

CAUSAL = ("ForCausalLM", "LMHeadModel", "GenerationDecoder")
"""And of those that are decoders alone."""


def class_names(kind: str, spec: ModelSpec) -> list[str]:
    """Classes of a model type that have the head of this spec, the likeliest first."""
    named = classes().get(kind, [])
    return [name for ending in _endings(named, spec) for name in _ending_with(named, ending)]


def wrapper_names(kind: str, bare: bool) -> list[str]:
    """Classes of a wrapper's model type, with its text's head or without."""
    named = classes().get(kind, [])
    return _ending_with(named, "Model") if bare else _ending_with(named, CONDITIONAL)


def _ending_with(named: list[str], ending: str | tuple[str, ...]) -> list[str]:
    return [name for name in named if name.endswith(ending)]


def _endings(named: list[str], spec: ModelSpec) -> list[str | tuple[str, ...]]:
    if isinstance(spec.head, Classifier):
        return ["ForSequenceClassification", "ForTokenClassification", "ForPreTraining"]
    if isinstance(spec.head, LMHead):
        return [_speaking(named, spec)]
    encoders = tuple(_ending_with(named, "EncoderModel"))
    if spec.kind == "encoder" and encoders:
        return [encoders]
    return [tuple(name for name in named if head_of({"architectures": [name]}) == "none" and name not in encoders)]


def _speaking(named: list[str], spec: ModelSpec) -> str | tuple[str, ...]:
    """How the name of a language model of this kind of stack ends."""
    if spec.kind == "encoder-decoder":
        return CONDITIONAL
    if spec.kind == "encoder" and _ending_with(named, "ForMaskedLM"):
        return "ForPreTraining" if _ending_with(named, "ForPreTraining") and spec.pooler is not None else "ForMaskedLM"
    if spec.kind == "encoder" and _ending_with(named, CONDITIONAL):
        return ()
    return CAUSAL
