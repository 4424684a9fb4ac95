"""Every model type of the pinned transformers with a class that generates or encodes text is read, or listed here.

The list only shrinks: a type that is read has to leave it.
"""

from __future__ import annotations

import pytest

from llmcalc.sources.huggingface.registry import model_types, usual_name

TASKS = (
    "CAUSAL_LM",
    "MASKED_LM",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SPEECH_SEQ_2_SEQ",
    "IMAGE_TEXT_TO_TEXT",
    "MULTIMODAL_LM",
)
"""Auto classes whose classes generate or encode text."""

MISSING = {
    "no language model: it generates the actions of a robot, and no text": """
    pi0
    """,
}
"""Reason → the model types that are not read."""


def _library_types() -> set[str]:
    """Returns the model types of the auto classes of these tasks."""
    from transformers.models.auto import modeling_auto

    types = (getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES") for task in TASKS)
    return {kind for mapping in types for kind in mapping}


def test_the_types_that_are_not_read_are_listed_with_the_reason() -> None:
    pytest.importorskip("transformers")
    listed = [kind for kinds in MISSING.values() for kind in kinds.split()]
    assert len(listed) == len({*listed})
    assert {kind for kind in _library_types() if usual_name(kind) not in model_types()} == {*listed}
