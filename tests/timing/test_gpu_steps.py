"""Seconds of training steps of transformers' classes on two GPUs (tests/data/gpu), on which no constant of a device was
found, beside what `llmcalc time` estimates for the same options.
"""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

import llmcalc
from tests.gpu_rows import rows_of, training_options
from tests.witnesses.test_gpu_families import LOOPS, TRAINING


def estimate(row: dict[str, Any], gpu: str) -> float:
    """The seconds that `llmcalc time` says for a row."""
    size = {"batch": row["batch"], "seq": row["seq"]}
    answer = llmcalc.time(row["model"], phase="training", hardware=gpu, **size, **training_options(row))
    return float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]


@pytest.mark.parametrize(("gpu", "count"), [("h200", 37), ("h100", 23)])
def test_steps_of_transformers_on_a_gpu(gpu: str, count: int) -> None:
    rows = [row for row in rows_of(gpu, "transformers") if not row["model"].startswith("t5")]
    errors = sorted(abs(estimate(row, gpu) / row["seconds"] - 1) for row in rows)
    assert len(errors) == count
    assert median(errors) < 0.1
    assert errors[int(0.9 * count)] < 0.4


def test_steps_of_families_on_an_h200() -> None:
    """Steps of 2 to 500 ms, half of them shorter than 50 ms, without those whose classes ran loops of torch.

    The largest errors are of small encoders (ModernBERT +138 %), whose short steps the host bounds here and there.
    """
    rows = [row for row in rows_of("h200", "families") if TRAINING.get(row["model"].partition("?")[0]) != LOOPS]
    rows = [row for row in rows if not row["model"].startswith("recurrentgemma")]
    errors = []
    for row in rows:
        options: dict[str, Any] = {"recompute": "full"} if row.get("recompute") else {}
        if "ForConditionalGeneration" not in row["class"]:
            options["attn_implementation"] = row["attention"]
        answer = llmcalc.time(
            row["model"],
            phase="training",
            hardware="h200",
            precision="bf16",
            batch=row["batch"],
            seq=row["seq"],
            **options,
        )
        seconds = float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]
        errors.append(abs(seconds / row["seconds"] - 1))
    assert len(errors) == 116
    assert median(errors) < 0.15
    assert sorted(errors)[int(0.9 * len(errors))] < 0.6
