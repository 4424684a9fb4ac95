"""Which `tie_word_embeddings` decides whether a wrapper's head is tied: checked against each class at every
combination.
"""

from __future__ import annotations

from typing import Any

import pytest

from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, model_types
from llmcalc.witnesses.meta_device import MetaDevice
from tests.components.towers.test_towers import UNMEASURED, wrapped
from tests.components.towers.tower_shapes import WRAPPERS
from tests.samples import sampled

WITHOUT_HEAD = {
    *("clip", "embedding_gemma2", "metaclip_2", "siglip", "siglip2"),
    *(kind for kind in model_types() if family_of(kind).projection_size is not None),
}
"""Wrappers whose class has no language-model head."""

ALWAYS_TIED = {"diffusion_gemma"}
"""Wrappers that are refused untied: the class then has all weights of the text model twice."""

NO_EMBEDDINGS = {"pp_formulanet"}
"""Wrappers whose class does not say which module its embedding is."""

KINDS = [
    kind
    for kind in WRAPPERS
    if family_of(kind).text_type is not None and kind not in WITHOUT_HEAD | ALWAYS_TIED | NO_EMBEDDINGS
]
UNCOUNTED = {kind for kind in model_types() if family_of(kind).uncounted_encoders}
BOTH = [(outer, inner) for outer in (True, False) for inner in (True, False, None)]


def told(kind: str, outer: bool | None, inner: bool | None) -> dict[str, Any]:
    """A small config of a wrapper with these values outside and inside its text_config."""
    config = {k: v for k, v in wrapped(kind, WRAPPERS[kind][2][0]).items() if k != "tie_word_embeddings"}
    text = {k: v for k, v in config["text_config"].items() if k != "tie_word_embeddings"}
    config["text_config"] = text if inner is None else {**text, "tie_word_embeddings": inner}
    return config if outer is None else {**config, "tie_word_embeddings": outer}


def tied_by_class(config: dict[str, Any]) -> bool:
    import transformers

    fields = {k: v for k, v in config.items() if k != "model_type"}
    with MetaDevice():
        model = getattr(transformers, config["architectures"][0])(
            transformers.AutoConfig.for_model(config["model_type"], **fields)
        )
    text_model = getattr(model, "text_decoder", None) or getattr(model, "language_model", model)
    head = model.get_output_embeddings() or text_model.get_output_embeddings()
    return bool(head.weight is text_model.get_input_embeddings().weight)


def rules_of(kind: str) -> set[Any]:
    """What a wrapper has of its own: the file that reads it, and its rules of tying."""
    family = family_of(kind)
    return {
        FILE_BY_TYPE[kind],
        ("ties", family.tying_source),
        ("generates", family.generates_text),
        ("filled", *family.text_defaults),
    }


def deciding(case: tuple[str, bool, bool | None]) -> set[Any]:
    """What decides: which of two values that differ the class reads. Each rule has every combination, and each file
    both pairs that differ.
    """
    kind, outer, inner = case
    family = family_of(kind)
    return {
        (family.tying_source, family.generates_text, outer, inner),
        *([(FILE_BY_TYPE[kind], outer)] if inner == (not outer) else []),
    }


@pytest.mark.parametrize(
    "case",
    sampled({f"{kind}-{outer}-{inner}": (kind, outer, inner) for kind in KINDS for outer, inner in BOTH}, deciding),
)
def test_the_head_is_tied_where_the_class_ties_it(case: tuple[str, bool, bool | None]) -> None:
    kind, outer, inner = case
    config = told(kind, outer, inner)
    assert read_config(config)[0]["tie_word_embeddings"] == tied_by_class(config)


@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("kind", sampled({kind: kind for kind in KINDS}, rules_of))
def test_where_the_wrapper_says_nothing_the_text_decides_and_a_remark_names_another_default(
    kind: str, inner: bool
) -> None:
    """A checkpoint with a head is loaded with it, even if the class would tie by default."""
    config = told(kind, None, inner)
    table, notes = read_config(config)
    assert table["tie_word_embeddings"] == (inner and family_of(kind).tying_source != "never")
    remarked = any(note.startswith("tie_word_embeddings: not given beside text_config") for note in notes)
    assert remarked == (tied_by_class(config) != table["tie_word_embeddings"])


@pytest.mark.parametrize(("kind", "is_read"), [("mistral3", False), ("qwen2_vl", True)])
def test_sizes_outside_the_text_section_have_a_remark_if_the_class_does_not_read_them(kind: str, is_read: bool) -> None:
    """`Qwen2VLConfig` gives its text model the sizes at the top of a config, `Mistral3Config` does not."""
    from transformers import AutoConfig

    assert (AutoConfig.for_model(kind, hidden_size=4096).text_config.hidden_size == 4096) == is_read
    notes = read_config({"model_type": kind, "hidden_size": 4096})[1]
    assert any(f"hidden_size: counted as the text model's; {kind}'s class" in note for note in notes) != is_read


def test_lfm2_vl_has_another_name_for_it() -> None:
    config = {**told("lfm2_vl", True, None), "tie_embedding": False}
    assert not read_config(config)[0]["tie_word_embeddings"]
    assert not tied_by_class(config)


def test_every_wrapper_is_here() -> None:
    wrappers = {kind for kind in model_types() if family_of(kind).text_type is not None and not family_of(kind).source}
    assert wrappers - UNMEASURED.keys() - UNCOUNTED - WITHOUT_HEAD - ALWAYS_TIED - NO_EMBEDDINGS == set(KINDS)
