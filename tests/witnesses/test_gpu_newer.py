"""Memory of newer families of transformers on an H200 (tests/data/gpu/h200/newer.jsonl), beside what is computed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from llmcalc.model import ModelSpec
from llmcalc.sources.target import load
from tests.gpu_rows import rows_of
from tests.witnesses.test_gpu_families import peak_bytes

TRAINING = {
    "deepseek_v4": (0.015, "its hyper-connections keep two float32 copies of all streams, of which one is counted"),
}
"""Model type → the largest relative error of a training step's peak, where it exceeds 0.3 %, and why."""

PREFILL = {
    "deepseek_v4": 0.022,
    "flint": 0.122,
    "mellum": 0.006,
    "mimo_v2_flash": 0.022,
    "vaultgemma": 0.022,
    "zaya": 0.004,
}
"""Model type → the largest relative error of a prompt's peak, where it exceeds 0.3 %."""

ROWS = rows_of("h200", "newer")


def model_type(row: dict[str, Any]) -> str:
    name: str = row["config"]["model_type"] if "config" in row else row["model"].partition("?")[0]
    return name


def measured_spec(row: dict[str, Any], folder: Path) -> ModelSpec:
    if "model" in row:
        return load(row["model"]).model
    file = folder / "config.json"
    file.write_text(json.dumps(row["config"]))
    return load(str(file)).model


@pytest.mark.parametrize("row", ROWS, ids=model_type)
def test_a_newer_family_takes_what_is_computed(row: dict[str, Any], tmp_path: Path) -> None:
    """Prompts and tokens ran beside the cuBLAS workspace of the thread of an earlier backward pass."""
    spec, name = measured_spec(row, tmp_path), model_type(row)
    error = abs(peak_bytes(row, spec, "training") / max(row["allocated_bytes"].values()) - 1)
    limit, _ = TRAINING.get(name, (0.003, ""))
    assert limit / 4 < error < limit if name in TRAINING else error < limit
    for phase, allowed in (("prefill", PREFILL.get(name, 0.003)), ("decode", 0.02)):
        computed = peak_bytes(row, spec, phase) + row.get("earlier_workspace_bytes", 0)
        assert abs(computed / row[f"{phase}_bytes"] - 1) < allowed, phase
