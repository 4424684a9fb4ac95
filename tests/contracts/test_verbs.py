"""docs/verbs.md is what docs/verbs.py writes: every verb of the recorder, with its words and a call of it by a part."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "docs"))

import verbs  # noqa: E402

NOT_CALLED = {"cross_entropy"}
"""Verbs that no part calls: the loss stands after the model."""

VERBS = {name: method for cls in verbs.classes() for name, method in verbs.verbs(cls).items()}


@pytest.fixture(scope="module")
def sections() -> dict[str, str]:
    """Verb → its section in the page."""
    _, *found = re.split(r"^### (?=\w+$)", verbs.PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {section.partition("\n")[0]: section for section in found}


def test_the_page_is_up_to_date() -> None:
    assert verbs.page() == verbs.PAGE.read_text(encoding="utf-8"), "run: python docs/verbs.py"


def test_groups_of_verbs_have_headings_of_their_own() -> None:
    headings = re.findall(r"^## (.*)$", verbs.PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(set(headings)) == len(headings) == len(verbs.classes())


def test_every_verb_has_a_section(sections: dict[str, str]) -> None:
    assert list(sections) == list(VERBS)
    assert {"linear", "attention", "cache", "part", "route"} <= set(VERBS)


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_says_what_it_does(name: str, sections: dict[str, str]) -> None:
    """In a first sentence that is no list of arguments; and a part calls it."""
    words = inspect.getdoc(VERBS[name]) or ""
    assert words
    assert not verbs.FIELD.match(words)
    assert ("As in `" in sections[name]) == (name not in NOT_CALLED)


def test_shapes_are_those_of_the_call(sections: dict[str, str]) -> None:
    assert "`[tokens, hidden]` → `[tokens, heads, head_dim]`" in sections["linear"]
    assert "Records `linear` with `ops.Linear`." in sections["linear"]
