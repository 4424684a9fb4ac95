"""The tables of docs/how-sure.md are those of the tests' data; `python -m tests.certainty` writes them anew.

The table of times is compared in tests/timing/test_measured.py, which computes every row.
"""

from __future__ import annotations

import pytest

from tests import certainty


@pytest.fixture(scope="module")
def memory() -> dict[str, list[certainty.Comparison]]:
    return certainty.memory_comparisons()


@pytest.mark.parametrize("language", certainty.PAGES)
def test_counts_are_those_of_the_comparisons(language: str) -> None:
    assert certainty.shown("counts", certainty.PAGES[language]) == certainty.counts_table(language).strip()
    assert certainty.shown("presets", certainty.PAGES[language]) == certainty.presets_table(language).strip()


@pytest.mark.parametrize("language", certainty.PAGES)
def test_errors_of_memory_are_those_of_the_rows(language: str, memory: dict[str, list[certainty.Comparison]]) -> None:
    assert certainty.shown("memory", certainty.PAGES[language]) == certainty.memory_table(language, memory).strip()


def test_the_worst_row_is_named(memory: dict[str, list[certainty.Comparison]]) -> None:
    rows = [certainty.Comparison("near", 0.01), certainty.Comparison("far", -0.2), certainty.Comparison("nearer", 0.0)]
    (row,) = certainty.memory_table("en", {"tuning": rows}).splitlines()[2:]
    assert row == "| published peaks of fine-tuning | 3 | 1.0 % | 20.0 % | far: −20.0 % |"
    assert all(len(compared) > 5 for compared in memory.values())
