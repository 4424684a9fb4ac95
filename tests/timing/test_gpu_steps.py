"""Seconds of training steps of transformers' classes on an H200 (tests/data/gpu), on which no constant of a device was
found, beside what `llmcalc time` estimates for the same options.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import llmcalc

MEASURED = Path(__file__).parents[1] / "data" / "gpu" / "h200" / "transformers.jsonl"


def estimate(row: dict[str, Any]) -> float:
    """The seconds that `llmcalc time` says for a row."""
    precision = "autocast" if row.get("autocast") else "bf16" if row["weights"] == "bfloat16" else "fp32"
    options: dict[str, Any] = {"precision": precision, "attn_implementation": row["attention"]}
    if row.get("recompute"):
        options["recompute"] = "full"
    if "lora" in row:
        options |= {"lora_rank": row["lora"], "lora_targets": row.get("lora_targets", "q_proj,v_proj")}
    if "accumulate" in row:
        options["num_microbatches"] = row["accumulate"]
    size = {"batch": row["batch"], "seq": row["seq"]}
    answer = llmcalc.time(row["model"], phase="training", hardware="h200", **size, **options)
    return float(answer.report().data["seconds"]["estimate"])  # type: ignore[call-overload]


def test_steps_of_transformers_on_a_gpu() -> None:
    rows = [json.loads(line) for line in MEASURED.read_text().splitlines()]
    rows = [row for row in rows if not row["model"].startswith("t5")]
    errors = {
        (row["model"], row["batch"], row["seq"], i): estimate(row) / row["seconds"] - 1 for i, row in enumerate(rows)
    }
    assert len(errors) == 37
    assert median(abs(error) for error in errors.values()) < 0.1
    assert sorted(abs(error) for error in errors.values())[int(0.9 * len(errors))] < 0.4
