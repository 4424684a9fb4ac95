"""Peaks that benchmarks and examples publish with the command of the run: tests/data/published_peaks.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import pytest

import llmcalc
from tests.samples import sampled

DATA = Path(__file__).parents[2] / "data"

ROWS: list[dict[str, Any]] = json.loads((DATA / "published_peaks.json").read_text())["rows"]

QUANTITIES = {"allocated": "peak_bytes", "reserved": "reserved_bytes", "required": "device_bytes"}
"""What a source reports → the key of the answer."""


SET_VARIABLE = re.compile(r"\w+=")
"""The beginning of a word before a command that sets a variable of its environment."""


def settings(row: dict[str, Any]) -> list[str]:
    """What a row alone may test: its program, the kind of its settings and what was measured."""
    programs = [word for word in row.get("command", "").split() if not SET_VARIABLE.match(word)]
    names = sorted(row.get("options", {})) or [Path(word).name for word in programs[:1]]
    return [row["quantity"], *names]


@pytest.mark.parametrize("row", sampled({row["id"]: row for row in ROWS}, settings))
def test_the_answer_is_near_the_published_peak(row: dict[str, Any]) -> None:
    launch = row.get("command", "").replace("tests/data/", f"{DATA}/") or None
    with NamedTemporaryFile("w", suffix=".yaml") as config_file:
        if "config" in row:
            config_file.write(json.dumps(row["config"]))
            config_file.flush()
            launch = config_file.name
        document = llmcalc.memory(row.get("model"), launch=launch, **row.get("options", {})).document
    memories = [document] if document.get("memory") else document["ranks"]
    counted = max(memory["memory"][QUANTITIES[row["quantity"]]] for memory in memories)
    least, most = row["counted_to_measured"]
    assert least <= counted / row["measured_bytes"] <= most, (row["id"], counted / row["measured_bytes"])
