"""Every folder of docs/measured: its command runs, and predicts as well as when it was added."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests import predicted
from tests.samples import in_one_test

ROWS = predicted.rows()


@in_one_test
@pytest.mark.parametrize("name", ROWS)
def test_a_folder_is_complete(name: str) -> None:
    row = ROWS[name]
    words = shlex.split(row.command)
    assert words[0] == "llmcalc"
    assert words[2] == "config.json"
    assert (predicted.FOLDER / name / "config.json").is_file()
    assert row.source.startswith("https://") or (predicted.ROOT / row.source).exists()
    assert row.unit in predicted.UNITS
    assert row.measured > 0


@pytest.mark.parametrize("name", ROWS)
def test_a_prediction_is_as_near_as_it_was(name: str) -> None:
    assert abs(predicted.error(name)) <= ROWS[name].within


@pytest.mark.parametrize(("language", "page"), predicted.PAGES.items())
def test_the_tables_are_current(language: str, page: Path) -> None:
    """If this fails: python -m tests.predicted."""
    match = predicted.TABLE.search(page.read_text())
    assert match is not None
    assert match[2].strip() == predicted.table(language).strip()
