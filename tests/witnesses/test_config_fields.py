"""A config field counts in llmcalc only if the family's class reads it, for every family and encoder.

`config_fields.py` says how the two are compared. The class of a family is in `transformers`: its own, or that of
the model type in `Family.like`. Only families whose class is code of the model's repository are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from llmcalc.sources.huggingface import description, parts, registry
from llmcalc.sources.huggingface.config import Config
from llmcalc.sources.huggingface.description import read_config
from llmcalc.sources.huggingface.families.llama import llama
from llmcalc.sources.huggingface.registry import FILE_BY_TYPE, family_of, library_class_names, model_types
from tests.builders import with_other_causes
from tests.families import shapes_of
from tests.witnesses.config_fields import Difference, class_reads, configs_of, differences, fields_asked

KINDS = [kind for kind in model_types() if not family_of(kind).source]

SHARES = 4
"""Number of tests that share the model types, so that several processes can run them."""


def lineage_of(kind: str) -> str:
    """The folder of the file that reads a model type: what stands in it reads a field by the same functions."""
    return FILE_BY_TYPE[kind].partition(".")[0]


LINEAGES = sorted({lineage_of(kind) for kind in KINDS})


def sample_of(kinds: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Returns (model type, config) of the shapes of a lineage's model types that have every field which the lineage
    reads. test_families.py compares the fields of every file at the values of its shapes, and test_differential.py some
    at other values.
    """
    shapes = [(kind, config) for kind in kinds for config in configs_of(kind)]
    return with_other_causes(shapes, lambda shape: {*fields_asked(shape[1]), *shape[1]})


@pytest.mark.parametrize("share", range(SHARES))
def test_fields_count_exactly_where_the_class_reads_them(share: int) -> None:
    """Each field that a lineage reads, in the first of its model types' shapes in which it changes a count."""
    found: list[str] = []
    for lineage in LINEAGES[share::SHARES]:
        known: set[str] = set()
        kinds = [kind for kind in KINDS if lineage_of(kind) == lineage]
        for _, config in sample_of(kinds):
            found += [str(difference) for difference in differences(config, known)]
        assert known or all(family_of(kind).text_type is not None or _leaves_an_encoder_out(kind) for kind in kinds), (
            lineage
        )
    assert not found, "\n".join(found)


def _leaves_an_encoder_out(kind: str) -> bool:
    """Whether an encoder of the class is not counted, so that its fields cannot be compared (Chameleon's images)."""
    return any("encoder is not counted" in note for config in configs_of(kind) for note in read_config(config)[1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS)
def test_fields_count_in_every_shape_where_the_class_reads_them(kind: str) -> None:
    found = [str(difference) for config in configs_of(kind) for difference in differences(config)]
    assert not found, "\n".join(found)


def test_every_family_has_a_class() -> None:
    without = [kind for kind in KINDS if kind not in library_class_names() and family_of(kind).class_model_type is None]
    assert all(family_of(kind).text_type is not None or shapes_of(kind)[0]["architectures"] for kind in without)
    assert all(class_reads(shapes_of(kind)[0]) for kind in ("mimo", "kimi_k2", "internlm3"))  # classes of other types


# --- wrong readings are found -----------------------------------------------------------------------------------------


def found_with(
    monkeypatch: pytest.MonkeyPatch, kind: str, read: Callable[[Config], dict[str, Any]]
) -> list[Difference]:
    """Returns the differences of a model type's first shape if it is read by another function."""
    family = replace(family_of(kind), read_model=read)
    known = registry.family_of
    for module in (registry, description, __import__("tests.witnesses.config_fields", fromlist=["_"])):
        monkeypatch.setattr(module, "family_of", lambda name, *args, **more: family if name == kind else known(name))
    return list(differences(shapes_of(kind)[0]))


def test_a_window_that_the_class_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(c: Config) -> dict[str, Any]:
        table = llama._read_llama(c)
        window = c.optional_integer("sliding_window")
        if window is not None:
            table["decoder"]["block"]["attention"]["sliding_window"] = window
        return table

    assert [found.path for found in found_with(monkeypatch, "llama", read)] == ["sliding_window"]


@pytest.mark.parametrize("field", ["head_dim", "num_key_value_heads"])
def test_a_size_that_only_rotary_angles_read_is_found(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """ModernBERT's rotary embedding reads `head_dim`, its projections do not."""
    known = family_of("modernbert").read_model
    assert known is not None

    def read(c: Config) -> dict[str, Any]:
        table = known(c)
        if c.optional_integer(field) is not None:
            table["encoder"]["block"]["attention"][field] = c.integer(field)
        return table

    assert [found.path for found in found_with(monkeypatch, "modernbert", read)] == [field]


def test_a_list_of_another_length_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(c: Config, field: str, kinds: dict[str, str], default: list[str]) -> list[str]:
        given = c.get(field)
        return default if given is None else [kinds[name] for name in (*given, *given)][: len(default)]

    monkeypatch.setattr(parts, "listed_kinds", listed)
    (found,) = differences(shapes_of("gemma3_text")[0])
    assert (found.path, "the class rejects it" in found.reason) == ("layer_types", True)
